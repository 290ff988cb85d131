"""Renders a check as a Markdown document, the optimisation report.

Takes a saved `Run`, yields Markdown blocks. If a measurement is missing, the report
prints the command that takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchproof import __version__
from torchproof.records import (
    CATEGORIES,
    SEVERITIES,
    CauseTree,
    CompileSite,
    Finding,
    Part,
    Run,
    cells,
)
from torchproof.report import (
    bench_sections,
    cause_words,
    commands,
    earlier_run,
    markup,
    numbers,
    rank_sections,
    run_words,
)
from torchproof.report.finding_section import entry, title
from torchproof.report.heading import heading
from torchproof.report.text_layout import Table

_PRIORITIES = {"high": "Immediate", "medium": "Short-term", "low": "Optional"}
_ARGUMENTS = ("Backend", "Mode", "Dynamic", "Fullgraph", "Options")
_CONFIG = ("Location", "Compiles", *_ARGUMENTS, "DDP or FSDP", "Calls")


def render(run: Run) -> Iterator[str]:
    still_open = [f for f in run.findings if f.status == "open"]
    yield from heading(run, "torch.compile optimisation report")
    for sentence in earlier_run.verdict(run):
        yield f"**{markup.inline(sentence)}**"
    yield from _baseline(run)
    yield from _summary(run, still_open)
    yield from _configuration(run)
    tree = CauseTree(run.findings)
    yield "## Findings"
    if not still_open:
        yield "No open findings."
    if first := cause_words.fix_first(run, tree):
        yield f"**{markup.inline(first)}**"
    for cause in tree.causes:
        yield entry(cause, run)
        yield from _explained(cause, tree)
    yield from _consequences(run, tree)
    yield from _ranks(run)
    yield from _priorities(tree)
    yield from _commands(run)
    yield from earlier_run.markdown(run)
    yield from _set_aside(run, "resolved", "In the earlier run, but not in this one.")
    yield from _set_aside(run, "intentional", "Marked as intentional by the code.")
    yield from _ablation(run)
    yield from _parts(run)
    yield _footer(run)


# -- measurements -----------------------------------------------------------------


def _baseline(run: Run) -> Iterator[str]:
    yield "## Baseline comparison"
    rows = bench_sections.timed(run)
    yield bench_sections.measured(rows).markdown() if rows else _unmeasured(run)
    varied = [
        table for table in bench_sections.variants(run) if not _is_ablation(table)
    ]
    yield from (table.markdown() for table in varied)
    if missing := bench_sections.not_ranked(run):
        yield f"Not ranked:\n\n{markup.bullets(map(markup.inline, missing))}"


def _unmeasured(run: Run) -> str:
    text = "This run did not compare eager and compiled times."
    command = commands.measuring(run)
    if command is None:
        return f"{text} A comparison needs a target that can run."
    return f"{text} To compare them:\n\n{markup.fence(command, 'bash')}"


def _is_ablation(table: Table) -> bool:
    return table.title.startswith(bench_sections.TITLES["config"])


def _ablation(run: Run) -> Iterator[str]:
    """The Inductor settings that the run varied, or the command that varies some."""
    tables = [table for table in bench_sections.variants(run) if _is_ablation(table)]
    command = commands.ablation(run)
    if tables or command:
        yield "## Config ablation"
    if tables:
        yield from (table.markdown() for table in tables)
    elif command:
        text = "This run varied no Inductor setting. To measure some, one at a time:"
        yield f"{text}\n\n{markup.fence(command, 'bash')}"


# -- findings --------------------------------------------------------------------


def _summary(run: Run, still_open: Sequence[Finding]) -> Iterator[str]:
    """Open findings by category and severity with totals, and the compile counts."""
    yield "## Summary"
    rows = []
    for category in dict.fromkeys(CATEGORIES.values()):
        findings = [f for f in still_open if f.category == category]
        if findings:
            rows.append([category, *_tally(findings)])
    rows.append(["Total", *_tally(still_open)])
    header = ("Category", *(s.capitalize() for s in SEVERITIES), "Total")
    yield markup.table(header, rows)
    if split := cause_words.totals(CauseTree(run.findings)):
        yield f"{split}."
    aside = [
        f"{count} {status}"
        for status in ("resolved", "intentional")
        if (count := sum(f.status == status for f in run.findings))
    ]
    if aside:
        yield f"Not in this table: {', '.join(aside)}."
    counts = {k: v for k, v in run.counts.items() if k not in run_words.TOLD}
    if any(value is not None for value in counts.values()):
        names = [markup.inline(name.replace("_", " ")) for name in counts]
        yield markup.table(names, [[numbers.count(v) for v in counts.values()]])
    if text := run_words.captured(run):
        yield f"{text}."


def _ranks(run: Run) -> Iterator[str]:
    """The functions and waits of all ranks, and a line of letters for each."""
    if run.ranks is None:
        return
    yield f"## Ranks\n\n{markup.prose(rank_sections.summary(run.ranks))}."
    if text := rank_sections.timeout(run.ranks):
        yield f"**{markup.inline(text)}.**"
    if run.ranks.functions:
        yield rank_sections.functions(run.ranks).markdown()
    if waits := rank_sections.waits(run.ranks):
        yield waits.markdown()
    if lines := rank_sections.timeline(run.ranks):
        yield markup.fence("\n".join(lines), "text")
    yield markup.bullets(map(markup.inline, run.ranks.notes))


def _explained(cause: Finding, tree: CauseTree) -> Iterator[str]:
    """The effects of a cause, one line each."""
    if effects := tree.effects(cause):
        text = cause_words.also_explains(effects)
        yield f"**{text[:1].upper()}{text[1:]}:**"
        yield markup.bullets(map(_in_one_line, effects))


def _in_one_line(finding: Finding) -> str:
    place, text = run_words.place(finding), title(finding)
    return f"{markup.inline(finding.code)} {markup.code(place)}: {markup.inline(text)}"


def _consequences(run: Run, tree: CauseTree) -> Iterator[str]:
    """The findings that others explain, each with its causes."""
    effects = [f for cause in tree.causes for f in tree.effects(cause)]
    if not effects:
        return
    yield "## Consequences"
    yield "Each of these follows from findings above, and disappears with them."
    for finding in effects:
        yield entry(finding, run)
        text = f"{cause_words.follows_from(finding, tree)} ({finding.certainty})"
        text += f": {finding.because}" if finding.because else ""
        yield f"**Follows from:** {markup.inline(text)}."


def _tally(findings: Sequence[Finding]) -> list[str]:
    split = run_words.by_severity(findings).values()
    return [str(number) for number in (*split, len(findings))]


def _configuration(run: Run) -> Iterator[str]:
    yield "## Configuration detected"
    if run.strategy not in {"", "as-written"} and run.counts.get("calls"):
        yield f"torchproof compiled the target: strategy {markup.code(run.strategy)}."
    if not run.configuration:
        read = run.parts.get("static", Part("skipped")).status != "skipped"
        none = "The target's source has no call of `torch.compile`."
        yield none if read else "The check did not read the source."
        return
    yield markup.table(_CONFIG, map(_site, run.configuration))
    yield markup.bullets(
        f"{markup.code(_lines(site))}: {markup.inline(site.observation)}"
        for site in run.configuration
        if site.observation
    )


def _site(site: CompileSite) -> tuple[str, ...]:
    arguments = (site.backend, site.mode, site.dynamic, site.fullgraph, site.options)
    order = "-" if site.order is None else f"{markup.inline(site.order)} the wrap"
    return (
        markup.code(_lines(site)),
        markup.code(site.subject),
        *("-" if text is None else markup.code(text) for text in arguments),
        order,
        numbers.count(site.calls),
    )


def _lines(site: CompileSite) -> str:
    last = f"-{site.end_line}" if site.end_line > site.line else ""
    return f"{cells.place(site.file, site.line)}{last}"


def _priorities(tree: CauseTree) -> Iterator[str]:
    if not tree.causes:
        return
    yield "## Priorities"
    for severity, label in _PRIORITIES.items():
        items = [
            f"[ ] {_in_one_line(f)}"
            for f in tree.causes
            if tree.severity(f) == severity
        ]
        if items:
            yield f"**{label}** ({severity})\n\n{markup.bullets(items)}"


def _commands(run: Run) -> Iterator[str]:
    yield "## Diagnostic commands"
    lines = [
        f"# {purpose}\n{command}" for purpose, command in commands.diagnostics(run)
    ]
    yield markup.fence("\n".join(lines), "bash")


def _set_aside(run: Run, status: str, description: str) -> Iterator[str]:
    """Findings with this status, one row each."""
    findings = [f for f in run.findings if f.status == status]
    if not findings:
        return
    yield f"## {status.capitalize()}"
    yield description
    rows = [
        (
            markup.inline(f.code),
            f.category,
            markup.code(run_words.place(f)),
            markup.inline(f.message),
        )
        for f in findings
    ]
    yield markup.table(("Code", "Category", "Location", "Message"), rows)


def _parts(run: Run) -> Iterator[str]:
    if run.parts:
        yield "## Parts of this check"
        rows = [
            (markup.inline(name), part.status, markup.inline(part.why))
            for name, part in run.parts.items()
        ]
        yield markup.table(("Part", "Status", "Reason"), rows)


def _footer(run: Run) -> str:
    again = markup.code(f"torchproof show {run.id} --format md")
    return (
        f"---\n\nGenerated by torchproof {__version__} from run {markup.code(run.id)}."
        f" To generate it again: {again}."
    )
