"""A survey of the ecosystem: `torchproof check` on models of five libraries.

    torchproof check benchmarks/zoo.py:timm_resnet18 --effort quick
    python -m benchmarks.zoo [MODEL ...] [--jobs N] [--quick]

A row is a model of benchmarks/zoo_models.py, on the CPU, with the command that a user
would type. `--effort quick` finds breaks, recompiles and compile errors; above it,
generated code is compiled, compared and timed as well, which says little about models
of these sizes. Where the check finds a break, a skipped function, or a recompile that
does not settle, `torchproof fix` shows what it can prove; nothing is written. Exit code
1 when a model was not checked or a fix changed an output.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `torchproof check` loads this file by its path

from benchmarks.survey import Options, Row, Survey, portable, torchproof  # noqa: E402
from benchmarks.zoo_models import FACTORIES, LIBRARIES  # noqa: E402

TARGET = "benchmarks/zoo.py"
LIMIT_S = 300  # for a target, as --timeout
BREAKS = ("graph_break", "skipped_frame", "no_op", "compile_error")
RECOMPILES = ("recompile", "recompile_limit", "specialization")
KEPT = (
    *("code", "kind", "severity", "status", "message", "cause", "fix"),
    *("file", "line", "function", "owner", "count", "source"),
)


globals().update(FACTORIES)  # where `check` looks for them


def command(verb: str, name: str) -> list[str]:
    """What a reader types to see a row again."""
    train = ["--train"] if name.endswith("_training") else []
    return [verb, f"{TARGET}:{name}", *train, "--effort", "quick"]


def measure(name: str, options: Options) -> Row:
    library = next(each for each, names in LIBRARIES.items() if name in names)
    row: Row = {"library": library, "check": _ran("check", name), "fix": None}
    if is_to_fix(row):
        row["fix"] = _ran("fix", name)
    return row


def _ran(verb: str, name: str) -> Row:
    """A command, its seconds, and the part of its run that pages need."""
    from benchmarks.fixes import outcome

    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    words, begin = command(verb, name), time.monotonic()
    words[1] = f"{ROOT / TARGET}:{name}"
    run, error = torchproof(*words, "--timeout", str(LIMIT_S), limit_s=3 * LIMIT_S)
    found: Row = {"command": f"torchproof {' '.join(command(verb, name))}"}
    found |= {"error": error, "seconds": round(time.monotonic() - begin, 1)}
    if run is None:
        return found
    if verb == "fix":
        return found | outcome(run)
    part = run["parts"]["breaks"]
    if part["status"] == "failed":  # stopped at the limit, for example
        found["error"] = f"only a part was checked: {portable(part['why'])}"
    findings = [{key: _kept(each.get(key)) for key in KEPT} for each in run["findings"]]
    return found | {"counts": run["counts"], "findings": findings}


def _kept(value: object) -> object:
    return portable(value) if isinstance(value, str) else value


# -- what rows say ---------------------------------------------------------------------


def findings(row: Row, *kinds: str) -> list[Row]:
    """The findings of a check, of these kinds."""
    return [f for f in row["check"].get("findings", ()) if f["kind"] in kinds]


def settles(finding: Row) -> bool:
    """A recompile that happens once, and then the graph is dynamic."""
    return bool(finding["kind"] == "recompile" and finding["severity"] == "low")


def again(row: Row) -> list[Row]:
    """The recompiles that do not settle after one.

    A size that the code makes a constant may be one that does not change here: it
    counts only where the model was recompiled more than once.
    """
    is_again = row["check"].get("counts", {}).get("recompiles", 0) > 1
    return [
        finding
        for finding in findings(row, *RECOMPILES)
        if not settles(finding) and (is_again or finding["kind"] != "specialization")
    ]


def is_whole(row: Row) -> bool:
    """One graph: nothing breaks it, and nothing stays outside, on purpose or not."""
    counts = row["check"]["counts"]
    outside = counts["graph_breaks"] + counts["skipped_frames"]
    return not outside and not findings(row, *BREAKS)


def is_fixed(row: Row) -> bool:
    """Whether `fix` ran to its end."""
    return bool(row["fix"] and not row["fix"]["error"])


def breaks_found(row: Row) -> int:
    """The breaks that the check found, and those that an edit uncovered."""
    return len(findings(row, *BREAKS)) + int(row["fix"]["breaks"]["uncovered"])


def breaks_left(row: Row) -> int:
    """The breaks that the proved fixes leave."""
    return sum(finding["kind"] in BREAKS for finding in row["fix"]["left"])


def is_to_fix(row: Row) -> bool:
    """Whether `fix` has not run, and there is a finding that it may remove."""
    return row["fix"] is None and any(
        finding["status"] == "open" and not settles(finding)
        for finding in findings(row, *BREAKS, *RECOMPILES)
    )


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if row["check"]["error"]:
            yield f"{name} was not checked: {row['check']['error']}"
        if (row["fix"] or {}).get("outputs") == "wrong":
            yield f"{name}: outputs differ with fixes"


SURVEY = Survey(
    "zoo",
    lambda options: list(FACTORIES),
    measure,
    failures,
    quick=("transformers_patchtst", "timm_resnet18"),
    limit_s=6 * LIMIT_S,
    packages=("transformers", "timm", "torchvision", "torch-geometric", "diffusers"),
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
