"""How often reading is right: what it finds in transformers, judged by hand.

    python benchmarks/precision.py [--write] [--seed N] [--size N]

Reads the installed transformers as `torchproof check FOLDER --effort static` does, and
draws findings at random. With `--write` the sample goes to
benchmarks/results/precision.json; a verdict that somebody has written there stays with
its finding. Fill in `verdict` ("right" or "wrong") and `why` by hand. Exit code 1 when
a sampled finding has no verdict, or is no longer found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torchproof.checking import suspicions

RESULTS = Path(__file__).resolve().parent / "results" / "precision.json"
SEED, SIZE = 2026, 50


def package() -> Path:
    found = importlib.util.find_spec("transformers")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def read() -> dict[str, Any]:
    """Every finding as a row, and what the reading took."""
    folder = package()
    begin = time.perf_counter()
    found = suspicions.read([folder])
    seconds = time.perf_counter() - begin
    rows = []
    for suspicion in found.suspicions:
        finding = suspicion.finding
        assert finding.file is not None
        row = {
            "code": finding.code,
            "severity": finding.severity,
            "file": Path(finding.file).relative_to(folder.parent).as_posix(),
            "line": finding.line,
            "function": finding.function,
            "source": (finding.source or "").strip(),
            "message": finding.message,
        }
        rows.append(row)
    return {
        "transformers": importlib.metadata.version("transformers"),
        "files": found.files,
        "seconds": round(seconds, 1),
        "cores": os.cpu_count(),
        "found": len(rows),
        "codes": dict(sorted(Counter(row["code"] for row in rows).items())),
        "rows": rows,
    }


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies a finding here; its message may be reworded."""
    return row["code"], row["file"], row["line"], row["source"]


def sampled(rows: list[dict[str, Any]], seed: int, size: int) -> list[dict[str, Any]]:
    """A sample in the order of the files, with the verdicts that are known."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    if RESULTS.exists():
        known = {key(row): row for row in json.loads(RESULTS.read_text())["sample"]}
    # Judged findings stay in the sample while they are found; a draw fills the rest.
    drawn = sorted(rows, key=lambda row: (key(row) not in known, _lot(row, seed)))
    chosen = drawn[:size]
    chosen.sort(key=lambda row: (row["file"], row["line"]))
    empty = {"verdict": None, "why": ""}
    return [
        {**row, **{k: known.get(key(row), empty)[k] for k in empty}} for row in chosen
    ]


def _lot(row: dict[str, Any], seed: int) -> str:
    return hashlib.sha256(repr((seed, *key(row))).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the sample")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--size", type=int, default=SIZE)
    options = parser.parse_args()
    every = read()
    rows = every.pop("rows")
    sample = sampled(rows, options.seed, options.size)
    for row in sample:
        place = f"{row['file']}:{row['line']}"
        print(f"{row['verdict'] or '-':6} {row['code']} {place} {row['source'][:90]}")
    print({k: v for k, v in every.items() if k != "codes"}, every["codes"])
    if options.write:
        kept = {"command": "python benchmarks/precision.py --write"}
        kept |= every | {"seed": options.seed, "sample": sample}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(row["verdict"] is None for row in sample))


if __name__ == "__main__":
    sys.exit(main())
