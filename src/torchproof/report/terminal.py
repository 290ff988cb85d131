"""A run as text for people: worst first, place, what, why, what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from torchproof.records import SEVERITIES, Finding, Part, Run
from torchproof.report import numbers, source_columns
from torchproof.report.capture_summary import captured

_COLOURS = {"high": "\x1b[31m", "medium": "\x1b[33m", "low": "\x1b[36m"}
_PLAIN = "\x1b[0m"
_HOME = Path(__file__).parents[2].as_posix() + "/"  # what holds the package
_INDENT = "   "


def render(
    run: Run, *, colour: bool = False, width: int = 80, verbose: bool = False
) -> str:
    """Open findings in full; those that nothing shows, or that are gone, as a line."""
    width = max(width, 40)
    lines = [*_header(run, width), ""]
    short: dict[str, list[Finding]] = {}
    for finding in run.findings:
        heading = None if verbose else _heading(finding, run)
        if heading:
            short.setdefault(heading, []).append(finding)
        else:
            lines += [*_finding(finding, colour, width, verbose), ""]
    for heading, findings in short.items():
        lines += _wrap(heading, width)
        for finding in findings:
            text = f"{_place(finding)}  {finding.code}  {finding.message}"
            lines += _wrap(text, width, _INDENT, _INDENT * 2)
        lines.append("")
    return "\n".join([*lines, *_footer(run, width)]) + "\n"


def findings(run: Run, *, width: int = 80) -> str:
    """What was found, for those who have no saved run to lead to."""
    told = [[*_finding(f, False, width, False), ""] for f in run.findings]
    return "\n".join([*_header(run, width), "", *chain.from_iterable(told)])


def _heading(finding: Finding, run: Run) -> str | None:
    """Under which heading a finding is a line of its own; None for one in full."""
    if finding.status == "resolved":
        return f"Resolved since run {(run.baseline or {}).get('id', '-')}:"
    if finding.status == "intentional":
        return "Intended by the code, not counted:"
    if finding.kind == "hazard" and not _only_read(run):
        return "Suspected from the source, not shown by this run:"
    return None


def _only_read(run: Run) -> bool:
    """Whether nothing was run: --effort static."""
    return run.options.get("effort") == "static"


def _header(run: Run, width: int) -> Iterator[str]:
    if _only_read(run):
        told = run.parts.get("static", Part("skipped")).why or "not read"
        yield from _wrap(f"{run.target}: {told}, nothing was run", width)
        return
    yield from _run_header(run, width)


def _run_header(run: Run, width: int) -> Iterator[str]:
    def count(name: str) -> str:
        return "-" if run.counts.get(name) is None else str(run.counts[name])

    device = run.environment.get("gpu") or run.environment.get("device")
    torch = run.environment.get("torch")
    as_written = run.strategy == "as-written"
    text = f"{count('calls')} call{'' if count('calls') == '1' else 's'}"
    text += f" of {run.target}"
    text += f" ({size})" if (size := run.environment.get("size")) else ""
    text += f" on {device}" if device else ""
    text += f", torch {torch}" if torch else ""
    text += ", as written" if as_written else f", strategy {run.strategy}"
    yield from _wrap(text, width)
    yield from _wrap(
        f"compiled {count('compiled_calls')} of {count('calls')} calls, "
        f"graphs {count('graphs')}, breaks {count('graph_breaks')}, "
        f"skipped frames {count('skipped_frames')}, recompiles {count('recompiles')}",
        width,
    )
    yield from _wrap(captured(run), width)
    yield from _wrap(_measured(run), width)
    if run.error or run.ending != "finished":
        why = run.error or f"the run was ended early ({run.ending})"
        yield from _wrap(f"Not complete: {why}. This is what was seen.", width)


def _measured(run: Run) -> str:
    """What a call takes in eager and compiled; empty where that was not measured."""
    rows = [row for row in run.measurements if not row.variant and row.median_ms]
    if [row.strategy for row in rows[:1]] != ["eager"] or len(rows) < 2:
        return ""
    eager, compiled = rows[:2]
    text = f"a call takes {numbers.milliseconds(eager.median_ms)} in eager and"
    text += f" {numbers.milliseconds(compiled.median_ms)} compiled"
    text += f" ({compiled.verdict})" if compiled.verdict else ""
    if compiled.first_call_s is not None:
        text += f", the first one {numbers.seconds(compiled.first_call_s)}"
    same = (compiled.numerics or {}).get("verdict")
    return text + (f"; answers: {same}" if same else "")


def _finding(
    finding: Finding, colour: bool, width: int, verbose: bool
) -> Iterator[str]:
    severity: str = finding.severity
    if colour:
        severity = f"{_COLOURS[severity]}{severity}{_PLAIN}"
    mark = "" if finding.status == "open" else f" ({finding.status})"
    cost = (
        "" if finding.cost_us is None else f"  {numbers.plain(finding.cost_us)} us/call"
    )
    yield f"{_place(finding)}  {finding.code} {severity}{mark}{cost}"
    yield from _wrap(finding.message, width, _INDENT)
    yield from _source(finding)
    for label, text in (("why: ", finding.cause), ("fix: ", finding.fix)):
        yield from _wrap(text, width, _INDENT + label)
    if verbose:
        for item in finding.evidence:
            yield from _wrap(item, width, _INDENT + "  - ")


def _place(finding: Finding) -> str:
    """Without the folders above an installed package, which say nothing."""
    if finding.file is None:
        return "-"
    file = finding.file.removeprefix(_HOME).rpartition("/site-packages/")[2]
    column = f":{finding.column}" if finding.column else ""
    return f"{file}:{finding.line}{column}"


def _wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width=width,
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _source(finding: Finding) -> Iterator[str]:
    """The line of code, and carets under the part of it that the finding is about."""
    if not finding.source or not finding.source.strip() or finding.line is None:
        return
    start, end = source_columns.marked(finding, finding.source)
    code = finding.source.lstrip()
    shift = len(finding.source) - len(code) - 4
    yield f"{finding.line:>6} |     {code}"
    yield " " * 6 + " | " + " " * (start - shift) + "^" * (end - start)


def _footer(run: Run, width: int) -> Iterator[str]:
    still_open = [f for f in run.findings if f.status == "open"]
    yield from _wrap(_tally(run, still_open), width)
    for name, part in run.parts.items():
        if name in ("breaks", "static") or not part.why:
            continue
        if part.status == "failed":
            yield from _wrap(f"Part {name} failed: {part.why}.", width, "", "  ")
        elif part.status == "passed":
            yield from _wrap(f"Part {name} passed, {part.why}.", width, "", "  ")
    for why, names in _left_out(run).items():
        yield from _wrap(f"Not checked, {why}: {', '.join(names)}.", width, "", "  ")
    read = run.parts.get("static", Part("skipped")).why
    if "not understood" in read and not _only_read(run):
        yield from _wrap(f"Part static: {read}.", width, "", "  ")
    if still_open:
        yield f"Explain one:  torchproof rule {still_open[0].code}"
    if run.findings:
        yield f"All evidence: torchproof show {run.id} -v"
    else:
        yield f"Saved as run {run.id}."


def _tally(run: Run, still_open: list[Finding]) -> str:
    """How many there are, or what was not found; hazards of a run apart."""
    done = run.parts.get("breaks", Part("skipped"))
    told = done.why and done.status in ("passed", "found")
    more = f", {done.why}" if told else ""
    shown = [f for f in still_open if _heading(f, run) is None]
    hazards = len(still_open) - len(shown)
    also = f"; {hazards} suspected from the source" if hazards else ""
    if shown:
        tally = [(sum(f.severity == s for f in shown), s) for s in SEVERITIES]
        split = ", ".join(f"{count} {severity}" for count, severity in tally if count)
        noun = "finding" if len(shown) == 1 else "findings"
        return f"{len(shown)} {noun} ({split}){more}{also}."
    if done.status == "failed":
        return f"Nothing found until then{also}."
    if done.status == "passed":
        nothing = "Nothing else found" if run.findings else "Nothing found"
        clean = ": no graph break, skipped frame, recompile or error"
        return f"{nothing}{more or clean}{also}."
    if not any(part.status in ("passed", "found") for part in run.parts.values()):
        return ""
    by = "" if _only_read(run) else " by the parts that ran"
    return f"Nothing found{by}{also}."


def _left_out(run: Run) -> dict[str, list[str]]:
    """Parts that were not done, by the reason; those of a higher effort aside."""
    reasons: dict[str, list[str]] = {}
    for name, part in run.parts.items():
        if part.status == "skipped" and "--effort" not in part.why:
            reasons.setdefault(part.why, []).append(name)
    return reasons
