"""What `torchproof check` says of workloads that have an original, and of that.

    python benchmarks/diagnoses.py [--device cuda] [--write]

Each is checked at `--effort quick`, with and without `--train`; with `--write`, the
counts of all runs go to benchmarks/results/diagnoses-DEVICE.json. Exit code 1 when a
cured form has a finding of high or medium severity.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from torchproof.targets.workloads import WORKLOADS

RESULTS = Path(__file__).resolve().parent / "results"
ORIGINALS = [name for name in WORKLOADS if name.endswith("-original")]
CHECKED = [
    twin for name in ORIGINALS for twin in (name.removesuffix("-original"), name)
]


def check(workload: str, train: bool, device: str) -> dict[str, Any]:
    command = ["check", f"workload:{workload}", *["--train"] * train]
    command += ["--effort", "quick", "--fail-on", "never"]
    command += ["--device", device, "--format", "json", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "torchproof", *command],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{workload}: {done.stderr}")
    run = json.loads(done.stdout)
    return {
        "command": run["command"],
        "size": run["environment"]["size"],
        "torch": run["environment"]["torch"],
        "device": run["environment"].get("gpu") or run["environment"]["device"],
        "counts": run["counts"],
        "severities": Counter(f["severity"] for f in run["findings"]),
        "kinds": Counter(f["kind"] for f in run["findings"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--write", action="store_true", help="keep the results")
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for workload in CHECKED:
        for train in (False, True):
            key = f"{workload}{' train' if train else ''}"
            print(key, file=sys.stderr)
            rows[key] = check(workload, train, options.device)
    if options.write:
        path = RESULTS / f"diagnoses-{options.device}.json"
        path.write_text(json.dumps(rows, indent=1) + "\n")
    loud = [
        key
        for key, row in rows.items()
        if "-original" not in key and {"high", "medium"} & set(row["severities"])
    ]
    for key in loud:
        print(f"{key} is not clean: {dict(rows[key]['kinds'])}", file=sys.stderr)
    return int(bool(loud))


if __name__ == "__main__":
    sys.exit(main())
