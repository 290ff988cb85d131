"""What `--trace` adds to the first call of a script.

Each arm is a process with empty caches, which compiles two layers of decoder12.py with
Inductor in its first call, and times that call: the seconds that pass, and the CPU
seconds of the process without the C++ compilers that it starts. The plain arm is the
script alone; `bench --trace` is the script with the hooks of a strategy's process,
without those that `check` observes with. The arms alternate, after one round that is
thrown away.

    python benchmarks/timeline_cost.py [--rounds 5] [--write]

Exit code 2 when an arm fails. Other programs on the machine change the seconds, and the
CPU seconds much less.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LAYERS = 2
SCRIPT = f"""
import json, sys, time
sys.path.insert(0, {str(HERE)!r})
import decoder12, torch
decoder12.LAYERS = {LAYERS}
torch.manual_seed(0)
model, calls = decoder12.make()
compiled = torch.compile(model)
wall, cpu = time.perf_counter(), time.process_time()
compiled(*calls[0])
times = {{"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}}
with open("times.json", "w") as file:
    json.dump(times, file)
"""
HOOKED = """
from pathlib import Path
from torchproof.observe import timeline
with timeline.record_timeline(Path.cwd()):
    timeline.start("full")
exec(compile(Path("script.py").read_text(), "script.py", "exec"))
"""
CHECK = (
    *("-m", "torchproof", "check", "script.py", "--effort", "quick"),
    *("--skip", "static", "--fail-on", "never"),
)
ARMS = {
    "plain": ("script.py",),
    "bench --trace": ("-c", HOOKED),
    "check --trace": (*CHECK, "--trace", "timeline.json"),
}
CLOCKS = ("cpu_s", "wall_s")


def run(arm: str) -> dict[str, float]:
    """The times of the first call in a process of an arm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, *ARMS[arm]],
            cwd=folder,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print(f"{arm} exited {done.returncode}:\n{done.stderr}", file=sys.stderr)
            raise SystemExit(2)
        times: dict[str, float] = json.loads((folder / "times.json").read_text())
        return times


def measure(rounds: int) -> dict[str, list[dict[str, float]]]:
    """The times of every round, by arm; the arms take turns in going first."""
    for arm in ARMS:
        run(arm)
    times: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for index in range(rounds):
        for arm in list(ARMS) if index % 2 == 0 else reversed(ARMS):
            times[arm].append(run(arm))
            last = times[arm][-1]
            words = f"{last['cpu_s']:.2f} s of CPU, {last['wall_s']:.2f} s"
            print(f"round {index + 1} {arm}: {words}", file=sys.stderr)
    return times


def ratios(times: dict[str, list[dict[str, float]]], arm: str) -> dict[str, Any]:
    """An arm against the plain one of the same round, by clock."""
    numbers = {}
    for clock in CLOCKS:
        pairs = zip(times["plain"], times[arm], strict=True)
        each = [after[clock] / before[clock] for before, after in pairs]
        numbers[clock] = {
            "median": statistics.median(each),
            "low": min(each),
            "high": max(each),
        }
    return numbers


def report(times: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    packages = ("torchproof", "torch")
    return {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in packages},
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "rounds": len(times["plain"]),
        "samples": times,
        "ratios": {arm: ratios(times, arm) for arm in ARMS if arm != "plain"},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    numbers = report(measure(arguments.rounds))
    for arm, by_clock in numbers["ratios"].items():
        for clock, ratio in by_clock.items():
            spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
            print(f"{arm} {clock}: {ratio['median']:.2f} of the plain call ({spread})")
    if arguments.write:
        path = HERE / "results" / f"timeline-cost-{platform.machine()}.json"
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
