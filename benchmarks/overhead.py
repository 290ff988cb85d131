"""What `torchproof check --effort quick` adds to a plain run of the same calls.

Each arm is a whole process, timed from start to exit. The plain arm loads
decoder12.py and runs its calls under `torch.compile(backend="eager")`. The arms
alternate, after one round that is thrown away.

    python benchmarks/overhead.py [--rounds 5] [--write]

Exit code 1 when the ratio of the medians is above the limit, 2 when an arm fails.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 1.3
HERE = Path(__file__).resolve().parent
DECODER = HERE / "decoder12.py"
CALLS = 6

PLAIN = f"""
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("decoder12", {str(DECODER)!r})
module = importlib.util.module_from_spec(spec)
sys.modules["decoder12"] = module
spec.loader.exec_module(module)
torch.manual_seed(0)
model, calls = module.make()
compiled = torch.compile(model, backend="eager")
for call in calls:
    compiled(*call)
"""
CHECK = ["check", f"{DECODER}:make", "--effort", "quick", "--format", "json"]
ARMS = {
    "plain": [sys.executable, "-c", PLAIN],
    "torchproof": [sys.executable, "-m", "torchproof", *CHECK],
}


def run(arm: str) -> float:
    """Seconds of one process of an arm, whose answer is checked."""
    # A folder of its own: the saved runs of earlier rounds must not slow later ones.
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run(
            ARMS[arm], cwd=folder, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - start
    found = arm == "torchproof" and done.returncode == 1
    if done.returncode != 0 and not found:
        print(f"{arm} exited {done.returncode}:\n{done.stderr}", file=sys.stderr)
        raise SystemExit(2)
    if arm == "torchproof":
        counted = json.loads(done.stdout)["counts"]["calls"]
        assert counted == CALLS, f"observed {counted} calls of {CALLS}"
    return seconds


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of every round, by arm; the arms take turns in going first."""
    for arm in ARMS:
        run(arm)
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for index in range(rounds):
        for arm in list(ARMS) if index % 2 == 0 else reversed(ARMS):
            seconds[arm].append(run(arm))
            print(f"round {index + 1} {arm}: {seconds[arm][-1]:.2f} s", file=sys.stderr)
    return seconds


def summary(values: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
    }


def report(seconds: dict[str, list[float]]) -> dict[str, object]:
    """The numbers, with the command and the machine they belong to."""
    plain, checked = seconds["plain"], seconds["torchproof"]
    paired = [b / a for a, b in zip(plain, checked, strict=True)]
    ratio = statistics.median(checked) / statistics.median(plain)
    packages = ("torchproof", "torch")
    return {
        "command": " ".join(["torchproof", *CHECK]).replace(f"{HERE.parent}/", ""),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in packages},
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "rounds": len(paired),
        "seconds": {arm: summary(values) for arm, values in seconds.items()},
        "samples": seconds,
        "ratio": {"of_medians": ratio, "low": min(paired), "high": max(paired)},
        "limit": LIMIT,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()

    seconds = measure(arguments.rounds)
    for arm, values in seconds.items():
        low, high = min(values), max(values)
        median = statistics.median(values)
        print(f"{arm:<11} median {median:.2f} s, {low:.2f} to {high:.2f}")
    numbers = report(seconds)
    ratio = numbers["ratio"]
    assert isinstance(ratio, dict)
    print(
        f"ratio       {ratio['of_medians']:.2f}, paired {ratio['low']:.2f} to "
        f"{ratio['high']:.2f}, limit {LIMIT}, {arguments.rounds} rounds"
    )
    if arguments.write:
        path = HERE / "results" / f"overhead-{platform.machine()}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return 1 if ratio["of_medians"] > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
