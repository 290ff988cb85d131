"""What each effort of `torchproof check` takes, next to a bare run of the same calls.

    python benchmarks/check_cost.py [NAME ...] [--rounds N] [--again] [--write]

The bare run loads the target, compiles it with `torch.compile` and makes its calls.
Every arm is a whole process, timed from start to exit, with empty caches of its own,
one at a time; with several rounds the median counts. Rows go to
benchmarks/results/check-cost-ARCH.json as they end; a row that is there is not measured
again without `--again`. `taskset -c 0,1` limits the cores; the number used is recorded.

Exit code 1 when a ratio is above its limit, 2 when an arm fails.
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
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMITS = {"quick": 1.3, "normal": 4.0, "full": 6.0}
# Targets by name, from small to large.
PROGRAMS = {
    "perceptron": "benchmarks/cost_programs.py:perceptron",
    "clipped": "benchmarks/cost_programs.py:clipped",
    "convnet": "benchmarks/cost_programs.py:convnet",
    "bert": "benchmarks/cost_programs.py:bert",
    "nanovlm-original": "workload:nanovlm-original",
}
BARE = """
import importlib, importlib.util, sys, torch
where, name = sys.argv[1].rsplit(":", 1)
if where == "workload":
    from torchproof.targets.workloads import WORKLOADS
    work = WORKLOADS[name]
    make = getattr(importlib.import_module(work.module), "make")
    model, calls = make(device="cpu", size="tiny")[:2]
else:
    spec = importlib.util.spec_from_file_location("target", where)
    sys.modules["target"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, calls = getattr(module, name)()
compiled = torch.compile(model)
for call in calls:
    compiled(**call) if isinstance(call, dict) else compiled(*call)
"""


def command(program: str, arm: str) -> list[str]:
    target = PROGRAMS[program]
    if arm == "bare":
        return [sys.executable, "-c", BARE, target]
    options = ("--effort", arm, "--device", "cpu", "--format", "json", "-q")
    return [sys.executable, "-m", "torchproof", "check", target, *options]


def seconds(program: str, arm: str) -> tuple[float, dict[str, Any]]:
    """How long one process took, and what its run says about its parts."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        (Path(folder) / "benchmarks").symlink_to(HERE)
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        start = time.perf_counter()
        done = subprocess.run(
            command(program, arm),
            cwd=folder,
            env={**os.environ, **caches, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.perf_counter() - start
    if done.returncode != 0 and (arm == "bare" or done.returncode != 1):
        print(
            f"{program} {arm}: exit {done.returncode}\n{done.stderr}", file=sys.stderr
        )
        raise SystemExit(2)
    if arm == "bare":
        return took, {}
    parts = json.loads(done.stdout)["parts"]
    return took, {name: part.get("seconds") for name, part in parts.items()}


def measured(program: str, rounds: int) -> dict[str, Any]:
    """One row: seconds by arm, ratios of the medians, seconds of each part."""
    samples: dict[str, list[float]] = {arm: [] for arm in ("bare", *LIMITS)}
    parts: dict[str, Any] = {}
    for _ in range(rounds):
        for arm, values in samples.items():
            took, of_parts = seconds(program, arm)
            values.append(round(took, 2))
            if of_parts:
                parts[arm] = of_parts
            print(f"{program} {arm}: {took:.1f} s {of_parts}", file=sys.stderr)
    medians = {arm: statistics.median(values) for arm, values in samples.items()}
    ratios = {arm: round(medians[arm] / medians["bare"], 2) for arm in LIMITS}
    return {"seconds": samples, "ratios": ratios, "parts": parts}


def machine() -> dict[str, Any]:
    packages = ("torchproof", "torch", "transformers")
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "from source"
    cores = len(os.sched_getaffinity(0))
    return {"versions": versions, "arch": platform.machine(), "cores": cores}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *PROGRAMS], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="measure kept rows again")
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    path = HERE / "results" / f"check-cost-{platform.machine()}.json"
    kept = json.loads(path.read_text()) if path.exists() and arguments.write else {}
    rows = kept.get("rows", {}) if kept.get("machine") == machine() else {}
    for program in arguments.names or PROGRAMS:
        if program not in rows or arguments.again:
            rows[program] = measured(program, arguments.rounds)
        if arguments.write:
            numbers = {
                "command": "python benchmarks/check_cost.py --write",
                "machine": machine(),
                "limits": LIMITS,
                "rows": rows,
            }
            path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    above = 0
    for program, row in rows.items():
        bare = statistics.median(row["seconds"]["bare"])
        ratios = [f"{arm} {ratio:.2f}x" for arm, ratio in row["ratios"].items()]
        print(f"{program}: bare {bare:.1f} s, {', '.join(ratios)}")
        above += sum(row["ratios"][arm] > limit for arm, limit in LIMITS.items())
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
