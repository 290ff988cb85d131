"""Repro packs of programs that fail in many ways, each run where there is torch alone.

    python benchmarks/repro_packs.py [NAME ...] [--minify] [--budget TIME] [--write]

Each program of tests/repro/failures is packed by the command and unpacked into an empty
folder; `python -I repro.py` then runs in an environment with torch and what torch
requires. With `--write` the outcomes are kept in benchmarks/results. Exit code 1 when a
pack is not made or does not fail as it states.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "repro"))

import failing  # noqa: E402

RESULTS = HERE / "results" / "repro-packs-cpu.json"


def outcome(case: failing.Case, python: Path, more: list[str]) -> dict[str, Any]:
    """What became of one program; null for what did not come to be."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        packed = failing.packed(case, folder, *more)
        found: dict[str, Any] = {
            "name": case.name,
            "kind": case.kind,
            "about": failing.about(case),
            "minified": "--minify" in more,
            "budget": more[1],
            "exit_code": packed.code,
            "seconds": round(packed.seconds, 1),
            "form": None,
            "size": None,
            "verdict": None,
            "same": False,
        }
        if packed.code != 0:
            return found | {"why": packed.stderr.strip().splitlines()[-1:]}
        details = packed.manifest["details"]
        ran = failing.ran(failing.unpacked(packed.path, folder / "empty"), python)
        found["kind"] = details["symptom"]["kind"]
        found |= {"form": details["form"], "size": details["size"]}
        found["lines"] = failing.program_lines(packed)
        found |= {"verdict": ran.verdict, "same": ran.code == 1}
        return found


def keep(row: dict[str, Any]) -> None:
    """Beside what is kept of other programs."""
    kept = json.loads(RESULTS.read_text())["packs"] if RESULTS.exists() else []
    rows = {(each["name"], each["minified"]): each for each in kept}
    rows[row["name"], row["minified"]] = row
    order = [case.name for case in failing.CASES]
    known = {
        "command": "python benchmarks/repro_packs.py --write",
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "torch": metadata.version("torch"),
        "packs": sorted(
            (each for each in rows.values() if each["name"] in order),
            key=lambda each: (each["minified"], order.index(each["name"])),
        ),
    }
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def line(row: dict[str, Any]) -> str:
    size = row["size"] or {"first": "-", "last": "-", "unit": ""}
    shown = f"{size['first']} -> {size['last']} {size['unit']}"
    text = row["verdict"] or " ".join(row.get("why") or ["-"])
    return (
        f"{row['name']:18} {row['kind']:16} {row['form'] or '-':8} {shown:24}"
        f" {row['seconds']:6.1f} s  {text[:100]}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--minify", action="store_true", help="shrink each further")
    parser.add_argument("--budget", default="2m", help="for shrinking each (2m)")
    parser.add_argument("--write", action="store_true", help="keep the outcomes")
    given = parser.parse_args()
    more = ["--budget", given.budget, *(["--minify"] if given.minify else [])]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        python = failing.bare_python(Path(scratch) / "venv")
        for case in failing.CASES:
            if given.names and case.name not in given.names:
                continue
            row = outcome(case, python, more)
            failed += not row["same"]
            print(line(row), flush=True)
            if given.write:
                keep(row)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
