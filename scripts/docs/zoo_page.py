"""The tables of docs/reference/zoo.md, from what benchmarks/zoo.py kept."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.zoo_rows import (
    BREAKS,
    RECOMPILES,
    RESULTS,
    Row,
    again,
    breaks_found,
    breaks_left,
    findings,
    is_fixed,
    is_to_fix,
    why_not_checked,
)
from torchproof.checking.rules import RULES
from torchproof.report import markdown

# Times and memory of models of these sizes say nothing about real ones.
LEFT_OUT = ("slowdown", "memory", "compile_time", "hazard")
PLACES = 4  # in a row
LONGEST = 180  # characters of an error
COMMAND = "torchproof check benchmarks/zoo.py:"
CAUSES = 10
# Where a package's files are, by version. The distribution is the package's name,
# unless it is another one.
SOURCES = {
    "transformers": "huggingface/transformers/blob/v{version}/src/",
    "timm": "huggingface/pytorch-image-models/blob/v{version}/",
    "torchvision": "pytorch/vision/blob/v{version}/",
    "torch_geometric": "pyg-team/pytorch_geometric/blob/{version}/",
    "diffusers": "huggingface/diffusers/blob/v{version}/src/",
    "torch": "pytorch/pytorch/blob/v{version}/",
}


def survey() -> Row:
    found: Row = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def checked(rows: list[Row]) -> list[Row]:
    return [row for row in rows if why_not_checked(row) is None]


def is_whole(row: Row) -> bool:
    """One graph: nothing breaks it, and nothing stays outside, on purpose or not."""
    counts = row["check"]["counts"]
    outside = counts["graph_breaks"] + counts["skipped_frames"]
    return not outside and not findings(row, *BREAKS)


# -- totals ----------------------------------------------------------------------------


def totals() -> str:
    every = survey()
    table = markdown.table(
        (
            "library",
            "models",
            "checked",
            "one graph",
            "with breaks",
            "breaks",
            "keep recompiling",
            "`fix` removes",
            "one graph with fixes, at least",
        ),
        _totals(every),
    )
    return f"{_where(every)}\n\n{table}{_limits(every)}"


def _totals(every: Row) -> Iterator[tuple[str, ...]]:
    names = list(dict.fromkeys(row["library"] for row in every["models"]))
    for library in names:
        rows = [row for row in every["models"] if row["library"] == library]
        version = every["versions"][library] or "not installed"
        yield (f"{library} {_plain(version)}", *_counts(rows))
    yield ("**all**", *_counts(every["models"]))


def _counts(rows: list[Row]) -> tuple[str, ...]:
    ran = checked(rows)
    whole = [row for row in ran if is_whole(row)]
    cured = [row for row in ran if not is_whole(row) and _is_cured(row)]
    return (
        str(len(rows)),
        str(len(ran)),
        _share(len(whole), len(ran)),
        str(len(ran) - len(whole)),
        str(sum(len(findings(row, *BREAKS)) for row in ran)),
        str(sum(bool(again(row)) for row in ran)),
        _removed_of(ran),
        _share(len(whole) + len(cured), len(ran)),
    )


def _removed_of(rows: list[Row]) -> str:
    """The breaks that `fix` removes, and the models with breaks it did not run on."""
    broken = [row for row in rows if is_fixed(row) and breaks_found(row)]
    missed = sum(bool(findings(row, *BREAKS)) and not is_fixed(row) for row in rows)
    if not broken:
        return "not run" if missed else "-"
    found = sum(map(breaks_found, broken))
    gone = found - sum(map(breaks_left, broken))
    models = f"{len(broken)} model{'s' if len(broken) > 1 else ''}"
    others = f", not run on {missed}" if missed else ""
    return f"{gone} of {found} in {models}{others}"


def _is_cured(row: Row) -> bool:
    """Whether the fixes that were proved leave one graph."""
    return is_fixed(row) and not breaks_left(row)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "-"


def _where(every: Row) -> str:
    ran = checked(every["models"])
    machine, versions = every["machine"], every["versions"]
    commits = sorted({row["commit"] for row in every["models"] if row["commit"]})
    seconds = [row["check"]["seconds"] for row in ran]
    took = f"{statistics.median(seconds):.0f} s" if seconds else "-"
    return (
        f"{len(ran)} models checked with torch {versions['torch']} and Python"
        f" {every['python']} on a CPU ({machine['arch']}, {machine['cores']} cores), at"
        f" commit {', '.join(commits) or '-'}; {took} a check at the median."
    )


def _limits(every: Row) -> str:
    limits = ""
    rows = checked(every["models"])
    if any(f["status"] == "intentional" for r in rows for f in findings(r, *BREAKS)):
        limits += (
            '\n\n"On purpose" says that the library keeps a function out of graphs.'
        )
    if every["torchvision_operators_declared"]:
        limits += (
            "\n\ntorchvision's C library did not match this build of torch. Its"
            " operators were declared without code, so that the library could be"
            " imported; models that need them were not checked."
        )
    return limits


# -- causes ----------------------------------------------------------------------------


def causes() -> str:
    """The rules that most models meet, each with its most frequent place."""
    every = survey()
    groups: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
    for row in checked(every["models"]):
        lasting = again(row)
        for finding in row["check"]["findings"]:
            if finding["status"] != "open" or finding["kind"] in LEFT_OUT:
                continue
            if finding["kind"] not in RECOMPILES or finding in lasting:
                groups[finding["code"]].append((row, finding))
    ranked = sorted(groups.items(), key=lambda each: (-_models(each[1]), each[0]))
    return markdown.table(
        ("rule", "pattern", "models", "findings", "most frequent place", "for example"),
        (_cause(code, found, every) for code, found in ranked[:CAUSES]),
    )


def _models(found: list[tuple[Row, Row]]) -> int:
    return len({row["model"] for row, _ in found})


def _cause(code: str, found: list[tuple[Row, Row]], every: Row) -> tuple[str, ...]:
    summary = next(rule.summary() for rule in RULES if rule.code == code)
    places: dict[str, list[Row]] = defaultdict(list)
    for row, finding in found:
        places[_place(finding, every)].append(row)
    place, rows = max(places.items(), key=lambda each: (len(each[1]), each[0]))
    return (
        f"[{code}](rules.md#{code.lower()})",
        summary,
        str(_models(found)),
        str(len(found)),
        f"{place} in {len({row['model'] for row in rows})}",
        f"`{rows[0]['model']}`",
    )


def _place(finding: Row, every: Row) -> str:
    """A place as a link to the line in the version that was checked."""
    file, line = finding["file"], finding["line"]
    if not file:
        return "-"
    if (library := file.partition(".")[0]) in SOURCES and "/" not in file:
        # Written to a temporary file, whose name is another one in each process.
        return f"code that {library} generates"
    package = file.partition("/")[0]
    name = f"{Path(file).name}:{line}"
    version = every["versions"].get(package.replace("_", "-"))
    if package not in SOURCES or version is None:
        return name
    folder = SOURCES[package].format(version=_plain(version))
    return f"[{name}](https://github.com/{folder}{file}#L{line})"


def _plain(version: str) -> str:
    """Without the build of torch that it is made for."""
    return version.partition("+")[0]


# -- models ----------------------------------------------------------------------------


def models() -> str:
    every = survey()
    parts = []
    for library in dict.fromkeys(row["library"] for row in every["models"]):
        rows = [row for row in every["models"] if row["library"] == library]
        parts += [f"### {library}", _library(rows, every)]
    return "\n\n".join(parts)


def _library(rows: list[Row], every: Row) -> str:
    return markdown.table(
        (
            "command",
            "one graph",
            "breaks",
            "recompiles over sizes",
            "`fix` removes",
            "seconds",
        ),
        (_model(row, every) for row in rows),
    )


def _model(row: Row, every: Row) -> tuple[str, ...]:
    first = f"`{(row['check'] or {}).get('command') or COMMAND + row['model']}`"
    if why := why_not_checked(row):
        flat = " ".join(why.split())
        short = flat if len(flat) <= LONGEST else f"{flat[:LONGEST]}..."
        return (first, short, "-", "-", "-", _seconds(row))
    return (
        first,
        "yes" if is_whole(row) else "no",
        _breaks(row, every),
        _recompiles(row),
        _removed(row),
        _seconds(row),
    )


def _breaks(row: Row, every: Row) -> str:
    found = findings(row, *BREAKS)
    shown = [_break(finding, every) for finding in found[:PLACES]]
    if len(found) > PLACES:
        shown.append(f"{len(found) - PLACES} more")
    return ", ".join(shown) or "none"


def _break(finding: Row, every: Row) -> str:
    """A function that the library keeps out of graphs is no defect."""
    purpose = " (on purpose)" if finding["status"] == "intentional" else ""
    return f"{finding['code']} at {_place(finding, every)}{purpose}"


def _recompiles(row: Row) -> str:
    count = row["check"]["counts"]["recompiles"]
    if not count:
        return "none"
    codes = sorted({finding["code"] for finding in again(row)})
    return f"{count} ({', '.join(codes)})" if codes else f"{count}, then it settles"


def _removed(row: Row) -> str:
    """Breaks and recompiles before and after the fixes that were proved."""
    fix = row["fix"]
    if fix is None:
        return "not run" if is_to_fix(row) else "-"
    if fix["error"]:
        return f"not run: {' '.join(fix['error'].split())[:80]}"
    recompiles = fix["recompiles"]
    counts = {
        "breaks": (breaks_found(row), breaks_left(row)),
        "recompiles": (
            recompiles["before"] + recompiles["uncovered"],
            recompiles["after"],
        ),
    }
    changes = [
        f"{before - after} of {before} {what}"
        for what, (before, after) in counts.items()
        if before
    ]
    return ", ".join(changes) or "nothing"


def _seconds(row: Row) -> str:
    each = [row[what]["seconds"] for what in ("check", "fix") if row[what]]
    return " + ".join(f"{seconds:.0f}" for seconds in each) or "-"


TABLES = {"zoo-totals": totals, "zoo-causes": causes, "zoo-models": models}
