"""A run as text for people: worst first, place, what, why, what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from torchproof.records import SEVERITIES, Finding, Run

_COLOURS = {"high": "\x1b[31m", "medium": "\x1b[33m", "low": "\x1b[36m"}
_PLAIN = "\x1b[0m"


def render(
    run: Run, *, colour: bool = False, width: int = 80, verbose: bool = False
) -> str:
    """Open findings in full, intentional ones as a line each."""
    lines = [*_header(run), ""]
    for finding in run.findings:
        if finding.status == "open" or verbose:
            lines += [*_finding(finding, colour, width, verbose), ""]
    quiet = [f for f in run.findings if f.status == "intentional" and not verbose]
    if quiet:
        lines += ["Intended, not counted:"]
        lines += [f"  {_place(f)}  {f.code}  {f.message}" for f in quiet] + [""]
    return "\n".join([*lines, *_footer(run)]) + "\n"


def _header(run: Run) -> Iterator[str]:
    counts, environment = run.counts, run.environment
    device = environment.get("gpu") or environment.get("device") or "-"
    calls = _number(counts.get("calls"))
    how = "as written" if run.strategy == "as-written" else f"strategy {run.strategy}"
    yield (
        f"{calls} calls of {run.target} on {device}, torch"
        f" {environment.get('torch') or '-'}, {how}"
    )
    yield (
        f"compiled calls {_number(counts.get('compiled_calls'))} of {calls}, "
        f"graphs {_number(counts.get('graphs'))}, "
        f"graph breaks {_number(counts.get('graph_breaks'))}, "
        f"skipped frames {_number(counts.get('skipped_frames'))}, "
        f"recompiles {_number(counts.get('recompiles'))}"
    )
    if run.ending != "finished":
        yield (
            f"The run was ended early ({run.ending}); this is what was seen until then."
        )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _finding(
    finding: Finding, colour: bool, width: int, verbose: bool
) -> Iterator[str]:
    severity = finding.severity
    painted = f"{_COLOURS[severity]}{severity}{_PLAIN}" if colour else severity
    mark = "" if finding.status == "open" else f" ({finding.status})"
    yield f"{_place(finding)}  {finding.code} {finding.kind} {painted}{mark}"
    yield from _wrap("", finding.message, width)
    yield from _source(finding)
    yield from _wrap("why: ", finding.cause, width)
    yield from _wrap("fix: ", finding.fix, width)
    if verbose:
        for item in finding.evidence:
            yield from _wrap("  - ", item, width)


def _place(finding: Finding) -> str:
    if finding.file is None:
        return "-"
    column = f":{finding.column}" if finding.column else ""
    return f"{finding.file}:{finding.line}{column}"


def _wrap(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width=max(width, 40),
        initial_indent="   " + label,
        subsequent_indent="   " + " " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _source(finding: Finding) -> Iterator[str]:
    if not finding.source or finding.line is None:
        return
    margin = f"{finding.line:>6} | "
    indent = len(finding.source) - len(finding.source.lstrip())
    shift = max(indent - 4, 0)
    yield margin + finding.source[shift:]
    if finding.column and finding.end_column and finding.end_column > finding.column:
        start = finding.column - 1 - shift
        yield (
            " " * 6 + " | " + " " * start + "^" * (finding.end_column - finding.column)
        )


def _footer(run: Run) -> Iterator[str]:
    still_open = [f for f in run.findings if f.status == "open"]
    if not still_open:
        clean = run.parts.get("breaks")
        if clean is not None and clean.status == "passed":
            yield "Nothing found: no graph break, skipped frame, recompile or error."
    else:
        tally = [(s, sum(f.severity == s for f in still_open)) for s in SEVERITIES]
        split = ", ".join(
            f"{number} {severity}" for severity, number in tally if number
        )
        noun = "finding" if len(still_open) == 1 else "findings"
        yield f"{len(still_open)} {noun} ({split})."
    waiting = [
        n for n, p in run.parts.items() if p.why == "not available in this version"
    ]
    if waiting:
        yield f"Not checked, not available in this version: {', '.join(waiting)}."
    if still_open:
        yield f"Explain one: torchproof rule {still_open[0].code}"
    yield f"Saved as run {run.id}. Evidence: torchproof show {run.id} -v"
