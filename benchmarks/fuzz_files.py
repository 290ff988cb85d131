"""Every file format that torchproof reads, mutated at random, and what it makes of it.

    python -m benchmarks.fuzz_files [FORMAT ...] [--quick] [--cases N] [--first N]

A row is a format. A case writes files, some of them mutated, and hands them to the
command line or to the function that reads them: see `fuzz_engine`. Exit code 1 if there
is a finding.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import fuzz_engine
from benchmarks.fuzz_formats import FORMATS, MAY_READ, RUNS, shows
from benchmarks.survey import Options, Row, Survey, portable

CASES, QUICK = 4000, 100


def warm_up() -> None:
    """Imports and computes what all cases need, before the fork."""
    import torch  # noqa: F401

    from torchproof.cli import parser, verbs

    # Once a process is as often as people do.
    for module, name in ((parser, "parser"), (verbs, "untested_torch")):
        function = getattr(module, name)
        if not hasattr(function, "cache_info"):
            setattr(module, name, functools.cache(function))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.json")
        for document in RUNS:
            path.write_text(json.dumps(document))
            for command in (*shows(str(path)), ["compare", str(path), str(path)]):
                fuzz_engine.ran(command)


def measure(name: str, options: Options) -> Row:
    warm_up()
    cases = options.cases or (QUICK if options.quick else CASES)
    may_read = MAY_READ.get(name)
    job = fuzz_engine.Job(
        FORMATS[name], cases, options.seed, options.first, may_read=may_read
    )
    found = fuzz_engine.run(job)
    return found | {"findings": [portable(each) for each in found["findings"]]}


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        yield from (f"{name}: {each}" for each in row["findings"])


SURVEY = Survey(
    "fuzz_files",
    lambda options: list(FORMATS),
    measure,
    failures,
    limit_s=7200,
    jobs=2,
    flags={
        "--cases": {"type": int, "help": f"of each format ({CASES})"},
        "--seed": {"type": int, "default": 0},
        "--first": {"type": int, "default": 0, "help": "the first case's number"},
    },
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
