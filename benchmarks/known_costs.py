"""Whether `torchproof bench` says of work of known cost what is known of it.

Two real runs on the targets of spin.py: compiled code that takes as long as eager, and
compiled code that is 1.10 times as fast.

    python benchmarks/known_costs.py [--write]

Exit code 1 when a verdict is wrong, 2 when a run fails.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TRUTH = {"equal": 1.0, "tenth": 1.1}
KEPT = ("vs_eager", "vs_eager_low", "vs_eager_high", "verdict", "samples", "notes")


def bench(factory: str) -> dict[str, Any]:
    """The row of the compiled arm."""
    target = f"{HERE / 'spin.py'}:{factory}"
    flags = ["--strategies", "eager,full", "--format", "json", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "torchproof", "bench", target, *flags],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        print(f"{factory} exited {done.returncode}:\n{done.stderr}", file=sys.stderr)
        raise SystemExit(2)
    rows = {row["strategy"]: row for row in json.loads(done.stdout)["measurements"]}
    return {name: rows["full"][name] for name in KEPT}


def is_right(row: dict[str, Any], truth: float) -> bool:
    """The interval holds the truth, and the verdict says so."""
    if row["vs_eager_low"] is None:
        return False
    held: bool = row["vs_eager_low"] <= truth <= row["vs_eager_high"]
    expected = "not significant" if truth == 1.0 else "faster"
    return held and expected in row["verdict"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()

    rows = {}
    for factory, truth in TRUTH.items():
        row = bench(factory)
        rows[factory] = row | {"truth": truth, "right": is_right(row, truth)}
        print(
            f"{factory}: truth {truth:.2f}, {row['verdict']}, {row['vs_eager']:.3f}"
            f" ({row['vs_eager_low']:.3f} to {row['vs_eager_high']:.3f})"
            f"{'' if rows[factory]['right'] else ': WRONG'}"
        )
    if arguments.write:
        machine = {"arch": platform.machine(), "cores": os.cpu_count()}
        path = HERE / "results" / f"known-costs-{platform.machine()}.json"
        text = json.dumps({"machine": machine, "rows": rows}, indent=2)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return 0 if all(row["right"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
