"""What observing a rank adds to its program: compiling, and the steps after it.

Two ranks train a small model under DDP (`rank_training.py`), alternately plain under
torch's launcher and observed by torchproof. A pair gives the ratio of the CPU seconds
of the slower rank, from its first step to its last: on a busy machine, other programs
do not change them. Wall time is reported as well.

    python benchmarks/observed_rank.py [--pairs 5] [--steps 300] [--write]

Exit code 1 if the median ratio is above the limit.
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

from torchproof.observe import RankOptions, observe_ranks
from torchproof.targets import Options, parse

LIMIT = 1.3
HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "rank_training.py"
RANKS = 2


def seconds_of(arm: str, steps: int) -> dict[str, float]:
    """The times of one launch, each of its slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        if arm == "plain":
            options = ["--standalone", f"--nproc-per-node={RANKS}"]
            launcher = [sys.executable, "-m", "torch.distributed.run", *options]
            program = [str(PROGRAM), folder, str(steps)]
            subprocess.run([*launcher, *program], check=True, capture_output=True)
        else:
            target = parse(str(PROGRAM), (folder, str(steps)))
            quiet = Options(quiet=True)
            observe_ranks(target, quiet, RankOptions(RANKS), lambda text: None)
        ranks = [
            json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8"))
            for rank in range(RANKS)
        ]
    return {name: max(each[name] for each in ranks) for name in ranks[0]}


def measure(pairs: int, steps: int) -> dict[str, list[dict[str, float]]]:
    launches: dict[str, list[dict[str, float]]] = {"plain": [], "observed": []}
    for index in range(pairs):
        for arm in ("plain", "observed") if index % 2 == 0 else ("observed", "plain"):
            launches[arm].append(seconds_of(arm, steps))
            print(arm, launches[arm][-1], file=sys.stderr)
    return launches


def ratios(launches: dict[str, list[dict[str, float]]], name: str) -> list[float]:
    pairs = zip(launches["observed"], launches["plain"], strict=True)
    return [observed[name] / plain[name] for observed, plain in pairs]


def report(
    launches: dict[str, list[dict[str, float]]], steps: int
) -> dict[str, object]:
    """The numbers, with the machine they belong to."""
    names = launches["plain"][0]
    return {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("torchproof", "torch")},
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "real_time": os.sched_getscheduler(0) == os.SCHED_FIFO,
        "pairs": len(launches["plain"]),
        "steps": steps,
        "ratio": {name: statistics.median(ratios(launches, name)) for name in names},
        "samples": launches,
        "limit": LIMIT,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    launches = measure(arguments.pairs, arguments.steps)
    ratio = statistics.median(ratios(launches, "cpu_s"))
    low, high = min(ratios(launches, "cpu_s")), max(ratios(launches, "cpu_s"))
    print(
        f"CPU seconds of a rank: {ratio:.3f} times as many ({low:.3f} to {high:.3f}),"
        f" limit {LIMIT}, {arguments.pairs} pairs of {arguments.steps} steps"
    )
    if arguments.write:
        numbers = report(launches, arguments.steps)
        path = HERE / "results" / f"observed-rank-{platform.machine()}.json"
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
