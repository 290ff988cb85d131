"""Renders a check as terminal text: causes in order of severity, then a summary.

Takes a `Run`, returns text. Each cause shows its place, message, cause and fix, and
what else it explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from torchproof.records import CauseTree, Finding, Part, Run, cells
from torchproof.report import (
    cause_words,
    commands,
    earlier_run,
    numbers,
    rank_sections,
    run_words,
    source_columns,
)
from torchproof.report.text_layout import INDENT, items, wrap

_COLOURS = {"high": "\x1b[31m", "medium": "\x1b[33m", "low": "\x1b[36m"}
_PLAIN = "\x1b[0m"


def render(
    run: Run, *, colour: bool = False, width: int = 80, verbose: bool = False
) -> str:
    """Open findings in full; hazards, resolved and intentional ones on one line."""
    width = max(width, 40)
    tree = CauseTree(run.findings)
    lines = [*_header(run, width), ""]
    for sentence in earlier_run.verdict(run):
        lines += [*wrap(sentence, width), ""]
    if first := cause_words.fix_first(run, tree):
        lines += [*wrap(first, width), ""]
    short: dict[str, list[Finding]] = {}
    for finding in run.findings:
        heading = None if verbose else _heading(finding, run)
        if heading:
            short.setdefault(heading, []).append(finding)
        elif verbose or not tree.is_effect(finding):
            on = rank_sections.only_on(finding, run)
            lines += _finding(finding, colour, width, verbose, on=on)
            lines += [*_links(finding, tree, width), ""]
    for heading, findings in short.items():
        lines += [*_short(heading, findings, width), ""]
    lines += _ranks(run, width, verbose=verbose)
    return "\n".join([*lines, *_footer(run, width)]) + "\n"


def findings(run: Run, *, width: int = 80) -> str:
    """The header and all findings, for a run that is not saved."""
    blocks = [[*_finding(f, False, width, False), ""] for f in run.findings]
    return "\n".join([*_header(run, width), "", *chain.from_iterable(blocks)])


def _short(heading: str, findings: Iterable[Finding], width: int) -> Iterator[str]:
    """A heading with a line for each finding."""
    yield from wrap(heading, width)
    for finding in findings:
        text = f"{_place(finding)}  {finding.code}  {finding.message}"
        yield from wrap(text, width, INDENT, INDENT * 2)


def _heading(finding: Finding, run: Run) -> str | None:
    """The heading of the list a finding belongs to; None to show it in full."""
    if finding.status == "resolved":
        return f"Resolved since run {run.baseline.id if run.baseline else '-'}:"
    if finding.status == "intentional":
        return "Intentional, not counted:"
    if finding.is_suspicion and not _only_read(run):
        return "Suspected from the source, not observed in this run:"
    return None


def _only_read(run: Run) -> bool:
    """Whether the check only read the source: --effort static."""
    return run.options.get("effort") == "static"


def _header(run: Run, width: int) -> Iterator[str]:
    if _only_read(run):
        scope = run.parts.get("static", Part("skipped")).why or "not read"
        yield from wrap(f"{run.target}: {scope}, not executed", width)
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
    yield from wrap(text, width)
    yield from wrap(
        f"compiled {count('compiled_calls')} of {count('calls')} calls, "
        f"graphs {count('graphs')}, breaks {count('graph_breaks')}, "
        f"skipped frames {count('skipped_frames')}, recompiles {count('recompiles')}"
        f"{' (the most on a rank)' if run.ranks else ''}",
        width,
    )
    yield from wrap(run_words.captured(run), width)
    yield from wrap(run_words.call_time(run), width)
    if run.ranks is not None:
        yield from wrap(rank_sections.summary(run.ranks), width)
    if why := run_words.incomplete(run):
        yield from wrap(f"Incomplete: {why}. Results so far follow.", width)


def _ranks(run: Run, width: int, *, verbose: bool) -> Iterator[str]:
    """The functions and waits of all ranks, and a line of letters for each."""
    if run.ranks is None:
        return
    most_functions = None if verbose else rank_sections.FEW_FUNCTIONS
    if run.ranks.functions:
        yield from rank_sections.functions(run.ranks, most_functions).text(width)
        yield ""
    if run.ranks.waits:
        few = None if verbose else rank_sections.FEW_WAITS
        yield "Waits in collectives:"
        yield from items(rank_sections.wait_lines(run.ranks, few), width)
        yield ""
    if lines := rank_sections.timeline(run.ranks):
        yield from lines[:-1]
        yield from wrap(lines[-1], width, INDENT)
        yield ""
    for note in run.ranks.notes:
        yield from wrap(f"Not observed: {note}.", width, "", INDENT)


def _finding(
    finding: Finding, colour: bool, width: int, verbose: bool, *, on: str = ""
) -> Iterator[str]:
    severity: str = finding.severity
    if colour:
        severity = f"{_COLOURS[severity]}{severity}{_PLAIN}"
    mark = "" if finding.status == "open" else f" ({finding.status})"
    cost = (
        "" if finding.cost_us is None else f"  {numbers.plain(finding.cost_us)} us/call"
    )
    where = f"  {on}" if on else ""
    yield f"{_place(finding)}  {finding.code} {severity}{mark}{cost}{where}"
    yield from wrap(finding.message, width, INDENT)
    yield from _source(finding)
    for label, text in (("why: ", finding.cause), ("fix: ", finding.fix)):
        yield from _labelled(label, text, width)
    if verbose:
        for item in finding.evidence:
            yield from _labelled("  - ", item, width)


def _links(finding: Finding, tree: CauseTree, width: int) -> Iterator[str]:
    """What a cause explains, or what explains an effect."""
    if above := cause_words.follows_from(finding, tree):
        why = f": {finding.because}" if finding.because else ""
        sure = f" ({finding.certainty})" if finding.certainty else ""
        yield from _labelled("follows from ", f"{above}{sure}{why}", width)
    effects = tree.effects(finding)
    if not effects:
        return
    yield from wrap(f"{cause_words.also_explains(effects)}:", width, INDENT)
    for effect in effects:
        brief = cause_words.briefly(effect, finding, tree)
        text = f"{_place(effect)}  {effect.code}  {brief}"
        yield from wrap(text, width, INDENT * 2, INDENT * 3)


def _labelled(label: str, text: str, width: int) -> list[str]:
    """A paragraph whose lines begin below each other, after the label."""
    first = INDENT + label
    return wrap(text, width, first, " " * len(first))


def _place(finding: Finding) -> str:
    """`file:line:column`."""
    is_cell = finding.file and cells.name_in(finding.file)
    column = f":{finding.column}" if finding.file and finding.column else ""
    column = "" if is_cell else column
    return f"{run_words.place(finding)}{column}"


def _source(finding: Finding) -> Iterator[str]:
    """The line of code, with carets under the part that the finding is about."""
    if not finding.source or not finding.source.strip() or finding.line is None:
        return
    start, end = source_columns.marked(finding, finding.source)
    code = finding.source.lstrip()
    shift = len(finding.source) - len(code) - 4
    yield f"{finding.line:>6} |     {code}"
    yield " " * 6 + " | " + " " * (start - shift) + "^" * (end - start)


def _footer(run: Run, width: int) -> Iterator[str]:
    still_open = [f for f in run.findings if f.status == "open"]
    yield from wrap(_tally(run, still_open), width)
    yield from _failed_parts(run, width)
    for name, part in run.parts.items():
        if name in ("breaks", "static") or not part.why:
            continue
        if part.status in ("passed", "found"):
            words = "found something" if part.status == "found" else "passed"
            yield from wrap(f"Part {name} {words}, {part.why}.", width, "", "  ")
    for why, names in _left_out(run).items():
        yield from wrap(f"Not checked, {why}: {', '.join(names)}.", width, "", "  ")
    static = run.parts.get("static", Part("skipped"))
    understood = static.status == "failed" or "not understood" not in static.why
    if not understood and not _only_read(run):
        yield from wrap(f"Part static: {static.why}.", width, "", "  ")
    if took := run_words.time_spent(run):
        yield from wrap(took, width, "", "  ")
    if still_open:
        yield f"Explain one:  torchproof rule {still_open[0].code}"
    if run.findings:
        yield f"All evidence: torchproof show {run.id} -v"
    else:
        yield f"Saved as run {run.id}."
    if may_be := commands.fixable(run):
        total = numbers.amount(len(still_open), "finding")
        yield f"{len(may_be)} of {total} may be fixable: {commands.of(run, 'fix')}"


def _failed_parts(run: Run, width: int) -> Iterator[str]:
    for text in run_words.failed_parts(run):
        yield from wrap(f"{text[:1].upper()}{text[1:]}.", width, "", "  ")


def _tally(run: Run, still_open: list[Finding]) -> str:
    """The number of findings by severity; hazards are counted separately."""
    breaks = run.parts.get("breaks", Part("skipped"))
    has_note = breaks.why and breaks.status in ("passed", "found")
    note = f", {breaks.why}" if has_note else ""
    observed = [f for f in still_open if _heading(f, run) is None]
    hazards = len(still_open) - len(observed)
    also = f"; {hazards} suspected from the source" if hazards else ""
    if observed:
        count = numbers.amount(len(observed), "finding")
        split = cause_words.totals(CauseTree(run.findings))
        count = f"{split}: {count}" if split else count
        return f"{count} ({run_words.severities(observed)}){note}{also}."
    if breaks.status == "failed":
        return f"No findings before the failure{also}."
    failed = any(part.status == "failed" for part in run.parts.values())
    if breaks.status == "passed" and not failed:
        nothing = "No other findings" if run.findings else "No findings"
        clean = ": no graph break, skipped frame, recompile or error"
        return f"{nothing}{note or clean}{also}."
    if not any(part.status in ("passed", "found") for part in run.parts.values()):
        return ""
    by = "" if _only_read(run) else " in the parts that ran"
    return f"No findings{by}{also}."


def _left_out(run: Run) -> dict[str, list[str]]:
    """Skipped parts by reason, except those that only a higher effort runs."""
    reasons: dict[str, list[str]] = {}
    for name, part in run.parts.items():
        if part.status == "skipped" and "--effort" not in part.why:
            reasons.setdefault(part.why, []).append(name)
    return reasons
