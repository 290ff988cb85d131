"""A survey of the ecosystem: `torchproof check` on models of four libraries.

    torchproof check benchmarks/zoo.py:timm_resnet18 --effort quick
    python -m benchmarks.zoo [MODEL ...] [--jobs N] [--quick]

A row is a model of benchmarks/zoo_models.py, on the CPU, with the command that a user
would type. `--effort quick` finds breaks, recompiles and compile errors; above it,
generated code is compiled, compared and timed as well, which says little about models
of these sizes. Where the check finds a break, a skipped function, or a recompile that
does not settle, `torchproof fix` shows what it can prove; nothing is written. Exit code
1 when a model was not checked, a fix changed an output, or fixes remove fewer breaks
than `REMOVED`.
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
REMOVED = 0.6  # of the breaks that `fix` meets, at least
BREAKS = ("graph_break", "skipped_frame", "no_op", "compile_error")
FIXABLE = {
    "GB": {"graph_break", "skipped_frame"},
    "RC": {"recompile", "recompile_limit"},
}
VERDICTS = ("same", "rounding", "random", "wrong")  # on outputs, the best first
RECOMPILES = ("recompile", "recompile_limit", "specialization")
FIELDS = (
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
    findings = [_part(each, FIELDS) for each in run["findings"]]
    return found | {"counts": run["counts"], "findings": findings}


def _part(record: Row, names: tuple[str, ...]) -> Row:
    """Some fields, with paths as they are in every environment."""
    plain = {name: record.get(name) for name in names}
    return {n: portable(v) if isinstance(v, str) else v for n, v in plain.items()}


def outcome(run: Row) -> Row:
    """The part of a run of `fix` that pages need."""
    fixes, summary = run["fixes"], run["fixing"]
    before, after = run["findings"], summary["remaining"]
    accepted = [fix for fix in fixes if fix["status"] in {"verified", "applied"}]
    verdicts = [fix["receipt"]["outputs"] for fix in accepted if fix["receipt"]]
    edit = ("title", "tier", "codes", "file", "line", "why")
    finding = ("code", "kind", "file", "line", "source")
    return {
        "breaks": changes(before, after, accepted, "GB"),
        "recompiles": changes(before, after, accepted, "RC"),
        "outputs": max(verdicts, key=VERDICTS.index, default=None),
        "accepted": [_part(fix, edit) for fix in accepted],
        "rejected": [_part(f, edit) for f in fixes if f["status"] == "rejected"],
        "left": [
            _part(each, finding) | {"why": summary["reasons"].get(each["identity"], "")}
            for each in after
        ],
    }


def changes(
    before: list[Row], after: list[Row], accepted: list[Row], family: str
) -> dict[str, int]:
    """Distinct findings before and after, and those that edits uncovered.

    A skipped function hides the findings behind it. What an edit uncovers counts as
    there before: it is in `uncovered`, and in `after` unless it was fixed as well.
    """

    def identities(found: list[Row]) -> set[str]:
        kinds = FIXABLE[family]
        opened = (f for f in found if f["kind"] in kinds and f["status"] == "open")
        return {finding["identity"] for finding in opened}

    first, last = identities(before), identities(after)
    fixed = {
        identity
        for fix in accepted
        if family in {code[:2] for code in fix["codes"]}
        for identity in fix["findings"]
    }
    uncovered = len((last | fixed) - first)
    return {"before": len(first), "uncovered": uncovered, "after": len(last)}


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
    fixed = [row for row in found.values() if is_fixed(row)]
    every, left = sum(map(breaks_found, fixed)), sum(map(breaks_left, fixed))
    if every - left < REMOVED * every:
        yield f"{every - left} of {every} breaks removed, at least {REMOVED:.0%}"


SURVEY = Survey(
    "zoo",
    lambda options: list(FACTORIES),
    measure,
    failures,
    quick=("transformers_tapas",),  # seven breaks, which safe edits remove
    limit_s=6 * LIMIT_S,
    packages=("transformers", "timm", "torchvision", "torch-geometric"),
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
