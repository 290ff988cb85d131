"""How much `torchproof fix` cures in real models: a sweep over models of transformers.

    python -m benchmarks.fixes [MODEL ...] [--jobs N] [--quick]

A row is a factory of benchmarks/transformers_models.py: `torchproof fix` runs on it,
and again with `--unsafe` where something is left and an edit was rejected as unsafe.
Exit code 1 when an accepted fix changed an output, or when fewer breaks are removed
than the targets below.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from benchmarks.survey import ROOT, Options, Row, Survey, portable, torchproof
from torchproof.records.fixes import NEEDS_UNSAFE

MODELS = "benchmarks/transformers_models.py"
TIERS = {"safe": (), "unsafe": ("--unsafe",)}
TARGETS = {"safe": 0.60, "unsafe": 0.75}  # of all breaks
BREAKS = {"graph_break", "skipped_frame"}
RECOMPILES = {"recompile", "recompile_limit"}
VERDICTS = ("same", "rounding", "random", "wrong")  # on outputs, the best first


def rows(options: Options) -> list[str]:
    from benchmarks import transformers_models

    return list(transformers_models.FACTORIES)


def measure(name: str, options: Options) -> Row:
    """A model in each tier; the second one only where it can differ."""
    safe = fixed(name, "safe")
    withheld = any(NEEDS_UNSAFE in each["why"] for each in safe.get("rejected", ()))
    more = withheld and safe["left"]
    return {"safe": safe, "unsafe": fixed(name, "unsafe") if more else safe}


def fixed(name: str, tier: str) -> Row:
    """What `torchproof fix` does to one model."""
    words = ["--effort", "quick", *TIERS[tier]]
    words += ["--train"] if name.endswith("_training") else []
    begin = time.monotonic()
    run, error = torchproof("fix", f"{ROOT / MODELS}:{name}", *words)
    found: Row = {"command": f"torchproof fix {MODELS}:{name} {' '.join(words)}"}
    found["seconds"] = round(time.monotonic() - begin, 1)
    return found | ({"error": error} if run is None else outcome(run))


def outcome(run: Row) -> Row:
    """The part of a run that the tables need."""
    fixes, summary = run["fixes"], run["fixing"]
    before, after = run["findings"], summary["remaining"]
    accepted = [fix for fix in fixes if fix["status"] in {"verified", "applied"}]
    verdicts = [fix["receipt"]["outputs"] for fix in accepted if fix["receipt"]]
    edit = ("title", "tier", "codes", "file", "line", "why")
    finding = ("code", "kind", "file", "line", "source")
    return {
        "breaks": changed(before, after, accepted, BREAKS),
        "recompiles": changed(before, after, accepted, RECOMPILES),
        "outputs": max(verdicts, key=VERDICTS.index, default=None),
        "accepted": [_part(fix, edit) for fix in accepted],
        "rejected": [_part(f, edit) for f in fixes if f["status"] == "rejected"],
        "left": [
            _part(each, finding) | {"why": summary["reasons"].get(each["identity"], "")}
            for each in after
        ],
    }


def _part(record: Row, names: tuple[str, ...]) -> Row:
    """Some fields, with paths as they are in every environment."""
    plain = {name: record.get(name) for name in names}
    return {n: portable(v) if isinstance(v, str) else v for n, v in plain.items()}


def changed(
    before: list[Row], after: list[Row], accepted: list[Row], kinds: set[str]
) -> dict[str, int]:
    """Distinct findings before and after, and those that edits uncovered.

    A skipped function hides the findings behind it. What an edit uncovers counts as
    there before: it is in `uncovered`, and in `after` unless it was cured as well.
    """

    def of(findings: list[Row]) -> set[str]:
        chosen = (f for f in findings if f["kind"] in kinds and f["status"] == "open")
        return {finding["identity"] for finding in chosen}

    first, last = of(before), of(after)
    family = "GB" if kinds == BREAKS else "RC"
    cured = {
        identity
        for fix in accepted
        if family in {code[:2] for code in fix["codes"]}
        for identity in fix["findings"]
    }
    uncovered = len((last | cured) - first)
    return {"before": len(first), "uncovered": uncovered, "after": len(last)}


def removed(found: list[Row], tier: str) -> tuple[int, int]:
    """Distinct breaks of all models that edits removed, and all of them."""
    counts = [row[tier]["breaks"] for row in found if "breaks" in row[tier]]
    every = sum(each["before"] + each["uncovered"] for each in counts)
    return every - sum(each["after"] for each in counts), every


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if row["unsafe"].get("outputs") == "wrong":
            yield f"{name}: outputs differ"
    for tier, target in TARGETS.items():
        gone, every = removed(list(found.values()), tier)
        if every and gone / every < target:
            yield f"{tier}: {gone} of {every} breaks removed, at least {target:.0%}"


SURVEY = Survey(
    "fixes",
    rows,
    measure,
    failures,
    quick=("tapas",),  # seven breaks, which safe edits remove
    limit_s=3600,
    packages=("transformers",),
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
