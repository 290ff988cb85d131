"""What the loop that `torchproof bench` times steps with adds to a step of 1 ms.

Two arms in one process take turns: an arm's own loop, and a bare loop that does the
same work and reads the clock once before and once after. Both are timed as a whole.
Pairs in which the process had to yield its core are left out.

    python -m benchmarks.harness [--pairs 200] [--write]

Exit code 1 when a step takes more than 1.01 times as long, 2 when the machine is too
busy to say.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.spin import KINDS, calibrate
from torchproof.measure import profiling
from torchproof.measure.specs import EAGER, StrategyJob
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records import stats
from torchproof.records.run import Frame
from torchproof.targets.target import Loaded

LIMIT = 1.01
STEP_MS = 1.0
BATCH_S = 0.005  # of steps, timed as a whole; short, so that some are undisturbed
PATIENCE_S = 60.0
FEWEST = 20  # pairs
KIND = "compute"
HERE = Path(__file__).resolve().parent


def harness(amount: int) -> StrategyWorker:
    """An arm in eager, whose one call is the work."""
    arm = StrategyWorker(StrategyJob(EAGER))
    place = Frame(__file__, 1, "harness")
    arm.loaded = Loaded(KINDS[KIND], [(amount,)], before_call=None, place=place)
    arm.fn, arm.train, arm.device = arm.loaded.fn, False, "cpu"
    arm.clock = profiling.Clock(arm.device)
    return arm


def in_harness(arm: StrategyWorker) -> tuple[float, float, int]:
    """Milliseconds a step, as the whole loop took and as it reports; steps done."""
    begin = time.perf_counter_ns()
    times, _ = arm.timed(BATCH_S)
    whole_ms = (time.perf_counter_ns() - begin) / 1e6
    return whole_ms / len(times), sum(times) / len(times), len(times)


def bare(amount: int, count: int) -> float:
    """Milliseconds a step of a loop that does nothing else."""
    work = KINDS[KIND]
    begin = time.perf_counter_ns()
    for _ in range(count):
        work(amount)
    return (time.perf_counter_ns() - begin) / 1e6 / count


def measure(pairs: int) -> dict[str, list[list[float]]]:
    """So many undisturbed pairs, or what a busy machine gives in a minute.

    Each value is a round of its own, as `samples.compare` wants them.
    """
    amount = calibrate(KIND, STEP_MS)
    arm = harness(amount)
    _, _, count = in_harness(arm)
    found: dict[str, list[list[float]]] = {"whole": [], "reported": [], "bare": []}
    end = time.monotonic() + PATIENCE_S
    while len(found["bare"]) < pairs and time.monotonic() < end:
        before, harness_first = profiling.context_switches(), len(found["bare"]) % 2
        plain_ms = 0.0 if harness_first else bare(amount, count)
        whole_ms, reported_ms, _ = in_harness(arm)
        plain_ms = plain_ms or bare(amount, count)
        if profiling.context_switches() == before:
            found["whole"].append([whole_ms])
            found["reported"].append([reported_ms])
            found["bare"].append([plain_ms])
    return found


def report(found: dict[str, list[list[float]]]) -> dict[str, Any]:
    ratios = {
        name: stats.compare(found[name], found["bare"], variation=0.0)
        for name in ("whole", "reported")
    }
    return {
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "pairs": len(found["bare"]),
        "step_ms": stats.summarise(found["bare"]).median,
        "ratio": {
            name: {"value": r.value, "low": r.low, "high": r.high}
            for name, r in ratios.items()
        },
        "limit": LIMIT,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()

    found = measure(arguments.pairs)
    if len(found["bare"]) < FEWEST:
        print(f"{len(found['bare'])} pairs undisturbed: too few", file=sys.stderr)
        return 2
    numbers = report(found)
    print(f"a bare step takes {numbers['step_ms']:.3f} ms, {numbers['pairs']} pairs")
    for name, ratio in numbers["ratio"].items():
        low, high = ratio["low"], ratio["high"]
        print(f"{name:<9} {ratio['value']:.4f} ({low:.4f} to {high:.4f})")
    if arguments.write:
        path = HERE / "results" / "harness-cpu.json"
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return int(max(each["value"] for each in numbers["ratio"].values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
