"""How long the other ranks wait when one rank fails: at most the deadline plus 2 s.

Runs the faults of tests/runtime/test_rank_faults.py on two ranks. Each rank measures
the call with the fault, and how much later than asked a thread of its own wakes: for so
long the machine kept the rank from running, and that time is not counted.

    python benchmarks/agreement_faults.py [--write]

Exit code 1 if a rank waited for longer, or a fault was not survived.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "runtime"))

rank_faults: Any = importlib.import_module("test_rank_faults")
LIMIT_S = 2.0  # after the deadline
FAULTS = (
    rank_faults.compiler_hangs_with_collectives,
    rank_faults.verification_fails,
    rank_faults.rank_dies,
)


def over_s(call: dict[str, Any]) -> float:
    """How long after the deadline a call ended, while the rank could run."""
    return float(call["seconds"] - call["starved_s"] - call["deadline_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    names = [fault.__name__ for fault in FAULTS]
    calls = rank_faults.run_ranks(*names)
    for call in calls:
        print(
            f"{call['fault']}, rank {call['rank']}: {call['seconds']:.1f} s, deadline"
            f" {call['deadline_s']:.1f} s, kept from running {call['starved_s']:.1f} s"
        )
    late = [call for call in calls if over_s(call) > LIMIT_S]
    if arguments.write:
        report = {
            "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
            "real_time": os.sched_getscheduler(0) == os.SCHED_FIFO,
            "versions": {
                "python": platform.python_version(),
                "torch": importlib.metadata.version("torch"),
            },
            "calls": calls,
            "limit_s": LIMIT_S,
        }
        path = HERE / "results" / f"agreement-faults-{platform.machine()}.json"
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return int(bool(late) or {call["fault"] for call in calls} != set(names))


if __name__ == "__main__":
    sys.exit(main())
