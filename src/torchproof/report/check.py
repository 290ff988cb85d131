"""The document of a check: the findings with their causes, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchproof import __version__
from torchproof.records import CATEGORIES, SEVERITIES, Finding, Part, Run
from torchproof.report import (
    bench_sections,
    commands,
    earlier_run,
    finding_block,
    numbers,
    rank_sections,
    ranks,
    run_sections,
    run_words,
    verdicts,
)
from torchproof.report.agent import OUTPUT
from torchproof.report.charts import bars
from torchproof.report.document import (
    Block,
    Code,
    Group,
    Items,
    Paragraph,
    Section,
    Steps,
    Table,
    Tile,
    Verdict,
    View,
)
from torchproof.report.finding_block import FindingBlock, Findings
from torchproof.report.opening import opening

_PRIORITIES = {"high": "Immediate", "medium": "Short-term", "low": "Optional"}
_ASIDE = {
    "resolved": "In the earlier run, but not in this one",
    "intentional": "Marked as intentional by the code",
}
# Edits that make a finding disappear without curing it, by its kind.
_NO_CURE = {
    "graph_break": "torch.compiler.disable, which keeps that code eager",
    "skipped_frame": "torch.compiler.disable, which keeps that code eager",
    "recompile": "a higher recompile_limit, which only allows more compiles",
    "recompile_limit": "a higher recompile_limit, which only allows more compiles",
    "compile_error": "suppress_errors, which runs the function eagerly",
    "numerics": "a looser tolerance in a test, which keeps the wrong values",
}
_LIBRARY = (
    "edit an installed package: change how your code calls it, or run fix with"
    " --patch DIR"
)
# Counts with a tile, each with another one beside it.
_COUNTED = (
    ("graph_breaks", "Graph breaks", "graphs"),
    ("recompiles", "Recompiles", "skipped_frames"),
)
_LONGEST = 220  # characters of the worst finding's message
_HIDE = "hide a finding with --ignore, --skip or --fail-on"


def document(run: Run, *, verbose: bool = False) -> Iterator[Block]:
    listed = finding_block.blocks(run)
    causes = [each for each in listed if each.finding.status == "open"]
    first = finding_block.fix_first(run, listed)
    words = View.TERMINAL | View.PAPER
    yield from opening(run, "torch.compile optimisation report", _first(run))
    yield verdicts.with_tiles(run, _verdict(run, listed, first), _tiles(run))
    for sentence in earlier_run.verdict(run):
        yield Paragraph(sentence, style="strong", views=words)
        yield Paragraph(sentence, "Since", views=View.AGENT)
    yield run_sections.strategies(run, "Strategies")
    yield from _unmeasured(run)
    yield _summary(run, listed)
    yield run_sections.time(run, tuple(listed))
    yield from run_sections.shapes(run)
    yield from _counts(run)
    yield from ranks.section(run, verbose=verbose)
    yield Paragraph(first, views=View.TERMINAL)
    yield Paragraph(_to_fix(causes), "To fix", views=View.AGENT)
    yield from _on_terminal(run, listed, verbose=verbose)
    yield from _in_full(run, first, causes)
    yield from _priorities(causes)
    yield from run_sections.about(run, "Findings", "No findings.")
    yield from _ablation(run)
    yield from _end(run, causes)
    yield from _for_agents(run, listed, causes)


def brief(run: Run) -> Iterator[Block]:
    """The first lines and all findings, for a run that is not saved."""
    yield Group(tuple(map(Paragraph, _first(run))))
    listed = finding_block.blocks(run)
    yield Findings(tuple(finding_block.in_order(listed, run)))


# -- the head --------------------------------------------------------------------------


def _first(run: Run) -> Iterator[str]:
    """The first lines on a terminal."""
    if only_read(run):
        scope = run.parts.get("static", Part("skipped")).why or "not read"
        yield f"{run.target}: {scope}, not executed"
        return

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
    yield text + (", as written" if as_written else f", strategy {run.strategy}")
    yield (
        f"compiled {count('compiled_calls')} of {count('calls')} calls, "
        f"graphs {count('graphs')}, breaks {count('graph_breaks')}, "
        f"skipped frames {count('skipped_frames')}, recompiles {count('recompiles')}"
        f"{' (the most on a rank)' if run.ranks else ''}"
    )
    yield from filter(None, (run_words.captured(run), run_words.call_time(run)))
    if run.ranks is not None:
        yield rank_sections.summary(run.ranks)


def only_read(run: Run) -> bool:
    """Whether the check only read the source: --effort static."""
    return run.options.get("effort") == "static"


def _unmeasured(run: Run) -> Iterator[Block]:
    """How to compare times, if the run did not."""
    if bench_sections.timed(run):
        return
    blocks: tuple[Block, ...]
    text = "This run did not compare eager and compiled times."
    command = commands.measuring(run)
    if command is None:
        blocks = (Paragraph(f"{text} A comparison needs a target that can run."),)
    else:
        steps = Steps((("Measure eager and compiled", command),))
        blocks = (Paragraph(f"{text} To compare them:"), steps)
    yield Section("Strategies", blocks, views=View.PAPER)


def _summary(run: Run, listed: Sequence[FindingBlock]) -> Section:
    """Open findings by category and severity with totals, and the compile counts."""
    still_open = [f for f in run.findings if f.status == "open"]
    rows = []
    for category in dict.fromkeys(CATEGORIES.values()):
        findings = [f for f in still_open if f.category == category]
        if findings:
            rows.append((category, *_tally(findings)))
    rows.append(("Total", *_tally(still_open)))
    aside = [
        f"{count} {status}"
        for status in _ASIDE
        if (count := sum(f.status == status for f in run.findings))
    ]
    split, captured = finding_block.totals(listed), run_words.captured(run)
    counts = {k: v for k, v in run.counts.items() if k not in run_words.TOLD}
    known = any(value is not None for value in counts.values())
    blocks = (
        Table("", ("category", *SEVERITIES, "total"), tuple(rows)),
        Paragraph(f"{split}." if split else ""),
        Paragraph(f"Not in this table: {', '.join(aside)}." if aside else ""),
        Table(
            "",
            tuple(name.replace("_", " ") for name in counts),
            (tuple(numbers.count(v) for v in counts.values()),) if known else (),
        ),
        Paragraph(f"{captured}." if captured else ""),
    )
    return Section("Summary", blocks, views=View.PAPER)


def _tally(findings: Sequence[Finding]) -> list[str]:
    split = run_words.by_severity(findings).values()
    return [str(number) for number in (*split, len(findings))]


# -- findings --------------------------------------------------------------------------


def _on_terminal(
    run: Run, listed: Sequence[FindingBlock], *, verbose: bool
) -> Iterator[Block]:
    """Open findings in full, hazards and others in a line each."""
    brief: dict[str, list[FindingBlock]] = {}
    for each in () if verbose else listed:
        if heading := _heading(each.finding, run):
            brief.setdefault(heading, []).append(each)
    shown = [each for each in listed if verbose or not _heading(each.finding, run)]
    shown = finding_block.in_order(shown, run) if verbose else shown
    yield Findings(tuple(shown), evidence=verbose, views=View.TERMINAL)
    for heading, findings in brief.items():
        lines = tuple(each.in_one_line for each in findings)
        yield Items(lines, heading, views=View.TERMINAL)


def _in_full(run: Run, first: str, causes: Sequence[FindingBlock]) -> Iterator[Block]:
    """Each cause, then each of their effects."""
    head = Paragraph(first if causes else "No open findings.", style="strong")
    every = finding_block.everything(causes)
    drafts = Paragraph(finding_block.about_drafts(run, every))
    blocks: tuple[Block, ...] = (head, drafts, Findings(tuple(causes)))
    yield Section("Findings", blocks, views=View.PAPER)
    effects = tuple(effect for cause in causes for effect in cause.effects)
    text = "Each of these follows from findings above, and disappears with them."
    blocks = (Paragraph(text if effects else ""), Findings(effects))
    yield Section("Consequences", blocks, views=View.PAPER)


def _heading(finding: Finding, run: Run) -> str:
    """The heading of the list a finding belongs to; empty to show it in full."""
    if finding.status == "resolved":
        return f"Resolved since run {run.baseline.id if run.baseline else '-'}"
    if finding.status == "intentional":
        return "Intentional, not counted"
    if finding.is_suspicion and not only_read(run):
        return "Suspected from the source, not observed in this run"
    return ""


def _priorities(causes: Sequence[FindingBlock]) -> Iterator[Block]:
    lists = [
        Items(
            tuple(each.in_one_line for each in causes if each.severity == severity),
            f"{label} ({severity})",
            style="tasks",
        )
        for severity, label in _PRIORITIES.items()
    ]
    yield Section("Priorities", tuple(lists), views=View.PAPER)


def _ablation(run: Run) -> Iterator[Block]:
    """The command that varies Inductor settings, if the run varied none."""
    varied = any("config" in row.variant for row in run.measurements)
    command = None if varied else commands.ablation(run)
    if command:
        text = "This run varied no Inductor setting. To measure some, one at a time:"
        steps = Steps((("Vary Inductor settings", command),))
        blocks = (Paragraph(text), steps)
        yield Section("Config ablation", blocks, views=View.PAPER)


# -- the end ---------------------------------------------------------------------------


def _end(run: Run, causes: Sequence[FindingBlock]) -> Iterator[Block]:
    lines = tuple(Paragraph(text, style="aside") for text in _last(run, causes))
    yield Group(lines, views=View.TERMINAL)
    again = Code(f"torchproof show {run.id} --format md")
    text: tuple[str, ...] = (
        f"Generated by torchproof {__version__} from run ",
        Code(run.id),
    )
    text += (". To generate it again: ", again, ".")
    yield Paragraph(text, views=View.PAPER)


def _last(run: Run, causes: Sequence[FindingBlock]) -> Iterator[str]:
    still_open = [each.finding for each in finding_block.everything(list(causes))]
    yield _total(run, causes, still_open)
    for text in run_words.failed_parts(run):
        yield f"{text[:1].upper()}{text[1:]}."
    for name, part in run.parts.items():
        if name in ("breaks", "static") or not part.why:
            continue
        if part.status in ("passed", "found"):
            words = "found something" if part.status == "found" else "passed"
            yield f"Part {name} {words}, {part.why}."
    for why, names in _skipped(run).items():
        if run.parts[names[0]].limit != "effort":
            yield f"Not checked, {why}: {', '.join(names)}."
    static = run.parts.get("static", Part("skipped"))
    if static.limit == "unreadable" and not only_read(run):
        yield f"Part static: {static.why}."
    yield from filter(None, [run_words.time_spent(run)])
    if still_open:
        first = next(f for f in run.findings if f.status == "open")
        yield f"Explain one:  torchproof rule {first.code}"
    if run.findings:
        yield f"All evidence: torchproof show {run.id} -v"
    else:
        yield f"Saved as run {run.id}."
    in_full = [each for each in causes if not _heading(each.finding, run)]
    may_be, drafts = commands.fixable(run), finding_block.about_drafts(run, in_full)
    if may_be:
        total = numbers.amount(len(still_open), "finding")
        yield from ["A draft is not proved: `fix` proves it."] if drafts else ()
        yield f"{len(may_be)} of {total} may be fixable: {commands.of(run, 'fix')}"
    elif drafts:
        yield drafts


def _total(run: Run, causes: Sequence[FindingBlock], still_open: list[Finding]) -> str:
    """The number of findings by severity; hazards are counted separately."""
    breaks = run.parts.get("breaks", Part("skipped"))
    has_note = breaks.why and breaks.status in ("passed", "found")
    note = f", {breaks.why}" if has_note else ""
    observed = [f for f in still_open if not _heading(f, run)]
    hazards = len(still_open) - len(observed)
    also = f"; {hazards} suspected from the source" if hazards else ""
    if observed:
        count = numbers.amount(len(observed), "finding")
        split = finding_block.totals(causes)
        count = f"{split}: {count}" if split else count
        return f"{count} ({run_words.severities(observed)}){note}{also}."
    return f"{_nothing(run)[1].rstrip('.')}{also}."


def _skipped(run: Run) -> dict[str, list[str]]:
    """Skipped parts by reason."""
    reasons: dict[str, list[str]] = {}
    for name, part in run.parts.items():
        if part.status == "skipped":
            reasons.setdefault(part.why, []).append(name)
    return reasons


# -- agents ----------------------------------------------------------------------------


def _counts(run: Run) -> Iterator[Block]:
    known = [f"{k} {v}" for k, v in run.counts.items() if v is not None]
    yield Paragraph(", ".join(known), "Counts", views=View.AGENT)
    yield Paragraph(run_words.call_time(run), "Time", views=View.AGENT)


def _for_agents(
    run: Run, listed: Sequence[FindingBlock], causes: Sequence[FindingBlock]
) -> Iterator[Block]:
    """The causes, what this run says nothing about, and what to do and not to do."""
    ordered = sorted(causes, key=lambda each: each.finding.is_suspicion)
    blocks: list[Block] = [Findings(tuple(ordered))]
    for each in (each for each in listed if each.finding.status != "open"):
        f = each.finding
        blocks.append(Paragraph(f"{f.code} {each.path} {f.message}", f.status))
    for text in run_words.failed_parts(run):
        label, _, why = text.partition(": ")
        blocks.append(Paragraph(why, label))
    for why, names in _skipped(run).items():
        blocks.append(Paragraph(f"{', '.join(names)} ({why})", "Not checked"))
    blocks.append(Paragraph(finding_block.about_drafts(run, causes), "note"))
    blocks.append(Steps(tuple(_next(run))))
    blocks += [Paragraph(text, label) for label, text in _do_not(ordered)]
    yield Group(tuple(blocks), views=View.AGENT)


def _to_fix(causes: Sequence[FindingBlock]) -> str:
    """`2 causes, 3 effects, 1 suspected`."""
    suspected = [each for each in causes if each.finding.is_suspicion]
    if not causes:
        return "nothing found in the parts that ran"
    count = numbers.amount(len(causes) - len(suspected), "cause")
    text = finding_block.totals(causes) or count
    return f"{text}, {len(suspected)} suspected" if suspected else text


def _next(run: Run) -> Iterator[tuple[str, str]]:
    """Edits to try, and what shows whether all of it is better than before."""
    live = commands.kind(run.target) == "live"
    output = () if live else OUTPUT
    if codes := ", ".join(dict.fromkeys(f.code for f in commands.fixable(run))):
        yield f"Edits to try ({codes})", commands.of(run, "fix", *output)
    command = commands.again(run)
    if command is not None and not live:
        yield "Check again", command
    compare = f"torchproof compare {run.id} NEW_RUN --format agent"
    yield "Then compare", compare
    yield "Explain", "torchproof rule CODE"


def _do_not(findings: Iterable[FindingBlock]) -> Iterator[tuple[str, str]]:
    found = [each.finding for each in findings]
    texts = [_NO_CURE[f.kind] for f in found if f.kind in _NO_CURE]
    if texts:
        yield "No cure", "; ".join(dict.fromkeys(texts))
    if any(f.owner == "library" for f in found):
        yield "Do not", _LIBRARY
    if found:
        yield "Do not", _HIDE


# -- the verdict -----------------------------------------------------------------------


def _verdict(run: Run, listed: Sequence[FindingBlock], first: str) -> Verdict:
    by_severity = finding_block.by_severity(listed)
    open_ = [b.finding for b in by_severity if b.finding.status == "open"]
    since = " ".join(earlier_run.verdict(run))  # it comes first
    sentences = (
        *run_words.failed_parts(run),
        first.rstrip("."),
        run_words.call_time(run),
        run_words.captured(run),
        _resolved(run),
    )
    more = tuple(filter(None, sentences))
    more = tuple(f"{text[:1].upper()}{text[1:]}." for text in more)
    if not open_:
        tone, text = _nothing(run)
        return Verdict(tone, "no findings", f"{since} {text}".strip(), more)
    worst = open_[0]
    tone = "bad" if worst.severity == "high" else "open"
    word = finding_block.totals(listed) or numbers.amount(len(open_), "open finding")
    cost = f" ({numbers.plain(worst.cost_us)} us per call)" if worst.cost_us else ""
    text = f"Most severe{cost}: {_shortened(worst.message)}."
    return Verdict(tone, word, f"{since} {text}".strip(), more)


def _resolved(run: Run) -> str:
    gone = sum(finding.status == "resolved" for finding in run.findings)
    if not gone or run.baseline is None:
        return ""
    verb = "is" if gone == 1 else "are"
    count = numbers.amount(gone, "finding")
    return f"{count} of run {run.baseline.id} {verb} resolved"


def _shortened(message: str) -> str:
    first = message.partition(";")[0]
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]} ..."


def _nothing(run: Run) -> tuple[str, str]:
    """Tone and text without open findings; claims only what the run checked."""
    breaks = run.parts.get("breaks", Part("skipped"))
    failed = any(part.status == "failed" for part in run.parts.values())
    if breaks.status == "passed" and not failed:
        calls = run.counts.get("calls")
        in_calls = f" in {numbers.amount(calls, 'call')}" if calls else ""
        clean = f"No graph break, skipped frame, recompile or error{in_calls}"
        return "good", f"{clean}{', ' + breaks.why if breaks.why else ''}."
    if any(part.status == "passed" for part in run.parts.values()):
        return "open" if failed else "good", "No findings in the parts that ran."
    return "open", "No part of the check completed."


def _tiles(run: Run) -> Iterator[Tile]:
    open_ = [finding for finding in run.findings if finding.status == "open"]
    counts = {name: numbers.count(value) for name, value in run.counts.items()}
    compiled, calls = (counts.get(name, "-") for name in ("compiled_calls", "calls"))
    yield Tile("Open findings", str(len(open_)), run_words.severities(open_))
    if "-" not in (compiled, calls):
        yield Tile("Compiled calls", f"{compiled} of {calls}")
    for name, label, beside in _COUNTED:
        other = run.counts.get(beside)
        note = numbers.amount(other, beside.replace("_", " ").rstrip("s"))
        yield Tile(label, counts.get(name, "-"), "" if other is None else note)
    same = bars.shared(run)
    rows = [row for row in run.measurements if dict(row.variant) == same]
    compiled_rows = [row for row in rows if row.strategy != "eager"]
    timed = (row for row in compiled_rows if numbers.known(row.median_ms))
    shown = (row for row in bars.plain(run) if row.strategy == "eager")
    yield from verdicts.worth(next(timed, None), next(shown, None))
