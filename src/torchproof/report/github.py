"""Renders findings or fixes as GitHub annotations (workflow commands), worst first.

GitHub shows ten annotations of each level per step, so the order decides which.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import (
    SEVERITIES,
    CauseTree,
    Finding,
    Fix,
    Run,
    document,
    line,
    shown,
)
from torchproof.report import (
    bench_sections,
    cause_words,
    fix_words,
    load_sections,
    rank_sections,
    run_words,
    search_words,
)

LEVELS = {"high": "error", "medium": "warning", "low": "notice"}


def render(run: Run) -> str:
    failed = [f"::error title=torchproof::{_data(text)}" for text in _failures(run)]
    return "\n".join([*failed, *_lines(run)]) + "\n"


def _failures(run: Run) -> list[str]:
    return [f"{line(text)}, in {line(run.target)}" for text in run_words.failures(run)]


def _lines(run: Run) -> list[str]:
    if run.verb == "fix":
        lines = [_fix(fix) for fix in fix_words.helpful(run) if fix.file]
        return [*lines, _summary(run, [])]
    still_open = [f for f in run.findings if f.status == "open"]
    tree = CauseTree(still_open)
    still_open.sort(key=lambda f: (tree.is_effect(f), SEVERITIES.index(f.severity)))
    lines = [_annotation(finding, tree, run) for finding in still_open]
    return [*lines, _summary(run, still_open)]


def _annotation(finding: Finding, tree: CauseTree, run: Run) -> str:
    """A cause at the level of the worst it explains; an effect as a notice."""
    properties = ",".join(f"{k}={_property(v)}" for k, v in _properties(finding))
    why, fix = (line(text).rstrip(".") for text in (finding.cause, finding.fix))
    ranks = rank_sections.only_on(finding, run)
    where = f" ({ranks})" if ranks else ""
    text = f"{line(finding.message)}{where}\nWhy: {why}.\nFix: {fix}."
    level = LEVELS[tree.severity(finding)]
    if effects := tree.effects(finding):
        text += f"\nIt {line(cause_words.also_explains(effects))}."
    if tree.is_effect(finding):
        level = LEVELS["low"]
        said = f"{cause_words.follows_from(finding, tree)} ({finding.certainty})"
        text += f"\nIt follows from {line(said)}."
    return f"::{level} {properties}::{_data(text)}"


def _fix(fix: Fix) -> str:
    """A fix where it belongs, with its diff."""
    place = [("file", line(shown(fix.file or ""))), ("line", fix.line or 1)]
    title = ("title", f"{fix_words.heading(fix)}, {fix.status}")
    properties = ",".join(f"{k}={_property(v)}" for k, v in (*place, title))
    parts = [line(fix.title), document(fix.diff), fix_words.proved(fix)]
    return f"::notice {properties}::{_data(chr(10).join(filter(None, parts)))}"


def _properties(finding: Finding) -> Iterator[tuple[str, object]]:
    if finding.file:
        yield "file", line(finding.file)
        if finding.line:
            yield "line", finding.line
            if finding.column and finding.end_column:
                yield "endLine", finding.line
                yield "col", finding.column
                yield "endColumn", finding.end_column
    yield "title", f"{finding.code} {finding.category}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: object) -> str:
    return _data(str(value)).replace(":", "%3A").replace(",", "%2C")


def _summary(run: Run, still_open: list[Finding]) -> str:
    """One line that GitHub cannot read as a command, whatever the target's name."""
    if run.verb == "bench":
        chosen = line(bench_sections.chosen(run)[0])
        return f"torchproof: bench of {line(run.target)}: {chosen}"
    if run.verb == "fix":
        return f"torchproof: fix of {line(run.target)}: {line(fix_words.summary(run))}"
    if run.verb == "tune":
        decision = search_words.decision(search_words.search_of(run))
        return f"torchproof: tune of {line(run.target)}: {line(decision)}"
    if run.verb == "loadtest":
        answer = load_sections.answer(load_sections.load_test_of(run))
        return f"torchproof: loadtest of {line(run.target)}: {line(answer)}"
    tally = [(sum(f.severity == s for f in still_open), s) for s in SEVERITIES]
    split = ", ".join(f"{count} {severity}" for count, severity in tally if count)
    noun = "finding" if len(still_open) == 1 else "findings"
    text = f"{len(still_open)} open {noun}" + (f" ({split})" if split else "")
    causes = cause_words.totals(CauseTree(still_open))
    text += f": {causes}" if causes else ""
    resolved = sum(f.status == "resolved" for f in run.findings)
    text += f", {resolved} resolved" if resolved else ""
    return f"torchproof: {text} in {line(run.target)}, run {line(run.id)}"
