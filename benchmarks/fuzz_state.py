"""Random programs that read state in every way of Python, against eager.

    python -m benchmarks.fuzz_state [graph|compile ...] [--quick] [--programs N]

Each program is called and changed in turn, as it is and by `torchproof.graph` or
`torchproof.compile`; answers, errors and state have to be the same. A program that
differs is made smaller and printed. Exit code 1 when one differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.survey import ROOT, Options, Row, Survey

TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS / "state_fuzz"), str(TESTS / "cudagraph")]

import state_runs  # noqa: E402

PROGRAMS, QUICK = 600, 12
# Compiling takes longer than recording: so many programs for each of the others.
SHARES = {"graph": 5.0, "torch.compile": 0.0}


def rows(options: Options) -> list[str]:
    return [name for name in state_runs.SUBJECTS if SHARES.get(name, 1.0)]


def measure(name: str, options: Options) -> Row:
    import state_search

    programs = options.programs or (QUICK if options.quick else PROGRAMS)
    count = int(programs * SHARES.get(name, 1.0))
    report = state_search.search(name, range(options.seed, options.seed + count))
    for failure in report.failures:
        print(f"{failure.script}\n{'-' * 88}", file=sys.stderr)
    return {
        "programs": report.programs,
        "calls": report.calls,
        "changes": report.changes,
        "counts": dict(report.counts),
        "reasons": dict(report.reasons),
        "failures": [
            {"seed": each.seed, "mechanisms": each.mechanisms, "told": each.difference}
            for each in report.failures
        ],
    }


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        for each in row["failures"]:
            yield f"{name}: program {each['seed']} differs from eager: {each['told']}"


SURVEY = Survey(
    "fuzz_state",
    rows,
    measure,
    failures,
    jobs=2,
    limit_s=7200,
    flags={
        "--programs": {"type": int, "help": f"of a subject ({PROGRAMS})"},
        "--seed": {"type": int, "default": 0},
    },
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
