"""The optimisation report: a check as a document, all of it from the saved run.

What was not measured is not printed: a sentence says so, with the command that would
measure it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchproof import __version__
from torchproof.records import CATEGORIES, SEVERITIES, CompileSite, Finding, Part, Run
from torchproof.report import (
    bench_sections,
    capture_summary,
    commands,
    markup,
    measurement_tables,
    numbers,
)
from torchproof.report.finding_section import entry, place, title
from torchproof.report.heading import heading
from torchproof.report.history import before_and_after

_PRIORITIES = {"high": "Immediate", "medium": "Short-term", "low": "Optional"}
_ARGUMENTS = ("Backend", "Mode", "Dynamic", "Fullgraph", "Options")
_CONFIG = ("Location", "Compiles", *_ARGUMENTS, "DDP or FSDP", "Calls")


def render(run: Run) -> Iterator[str]:
    still_open = [f for f in run.findings if f.status == "open"]
    yield from heading(run, "torch.compile optimisation report")
    yield from _baseline(run)
    yield from _summary(run, still_open)
    yield from _configuration(run)
    yield "## Findings"
    if not still_open:
        yield "No open findings."
    yield from (entry(finding, run) for finding in still_open)
    yield from _priorities(still_open)
    yield from _commands(run)
    yield from before_and_after(run)
    yield from _set_aside(run, "resolved", "In the earlier run, and not in this one.")
    yield from _set_aside(run, "intentional", "Wanted by the code, and not counted.")
    yield from _ablation(run)
    yield from _parts(run)
    yield _footer(run)


# -- what was measured -----------------------------------------------------------------


def _baseline(run: Run) -> Iterator[str]:
    yield "## Baseline comparison"
    rows = bench_sections.ranked(run)
    yield measurement_tables.baseline(rows) if rows else _unmeasured(run)
    varied = [
        table for table in bench_sections.variants(run) if not _is_ablation(table)
    ]
    yield from map(measurement_tables.of_section, varied)
    if missing := bench_sections.not_ranked(run):
        yield f"Not ranked:\n\n{markup.bullets(map(markup.inline, missing))}"


def _unmeasured(run: Run) -> str:
    text = "Eager and compiled were not measured against each other in this run."
    command = commands.measuring(run)
    if command is None:
        return f"{text} It takes a target that can be run."
    return f"{text} This does it:\n\n{markup.fence(command, 'bash')}"


def _is_ablation(found: bench_sections.Table) -> bool:
    return found.title.startswith(bench_sections.TITLES["config"])


def _ablation(run: Run) -> Iterator[str]:
    """Inductor's settings, if the run varied them."""
    found = [table for table in bench_sections.variants(run) if _is_ablation(table)]
    command = commands.ablation(run)
    if found or command:
        yield "## Config ablation"
    if found:
        yield from map(measurement_tables.of_section, found)
    elif command:
        said = "This run varied no setting of Inductor. This measures some, each alone:"
        yield f"{said}\n\n{markup.fence(command, 'bash')}"


# -- what was found --------------------------------------------------------------------


def _summary(run: Run, still_open: Sequence[Finding]) -> Iterator[str]:
    """Open findings by category and severity, whose totals add up; and the counts."""
    yield "## Summary"
    rows = []
    for category in dict.fromkeys(CATEGORIES.values()):
        mine = [f for f in still_open if f.category == category]
        if mine:
            rows.append([category, *_tally(mine)])
    rows.append(["Total", *_tally(still_open)])
    header = ("Category", *(s.capitalize() for s in SEVERITIES), "Total")
    yield markup.table(header, rows)
    aside = [
        f"{count} {status}"
        for status in ("resolved", "intentional")
        if (count := sum(f.status == status for f in run.findings))
    ]
    if aside:
        yield f"Not in this table: {', '.join(aside)}."
    known = {k: v for k, v in run.counts.items() if k not in capture_summary.TOLD}
    if any(value is not None for value in known.values()):
        names = [markup.inline(name.replace("_", " ")) for name in known]
        yield markup.table(names, [[numbers.count(v) for v in known.values()]])
    if said := capture_summary.captured(run):
        yield f"{said}."


def _tally(findings: Sequence[Finding]) -> list[str]:
    split = [sum(f.severity == severity for f in findings) for severity in SEVERITIES]
    return [str(number) for number in (*split, len(findings))]


def _configuration(run: Run) -> Iterator[str]:
    yield "## Configuration detected"
    if run.strategy not in {"", "as-written"} and run.counts.get("calls"):
        yield f"torchproof compiled the target: strategy {markup.code(run.strategy)}."
    if not run.configuration:
        read = run.parts.get("static", Part("skipped")).status != "skipped"
        none = "No call of `torch.compile` was found in the target's own source."
        yield none if read else "The source was not read for calls of `torch.compile`."
        return
    yield markup.table(_CONFIG, map(_site, run.configuration))
    told = [site for site in run.configuration if site.observation]
    yield markup.bullets(
        f"{markup.code(_lines(site))}: {markup.inline(site.observation)}"
        for site in told
    )


def _site(site: CompileSite) -> tuple[str, ...]:
    given = (site.backend, site.mode, site.dynamic, site.fullgraph, site.options)
    order = "-" if site.order is None else f"{markup.inline(site.order)} the wrap"
    return (
        markup.code(_lines(site)),
        markup.code(site.subject),
        *("-" if text is None else markup.code(text) for text in given),
        order,
        numbers.count(site.calls),
    )


def _lines(site: CompileSite) -> str:
    last = f"-{site.end_line}" if site.end_line > site.line else ""
    return f"{site.file}:{site.line}{last}"


def _priorities(still_open: Sequence[Finding]) -> Iterator[str]:
    if not still_open:
        return
    yield "## Priorities"
    for severity, label in _PRIORITIES.items():
        mine = [f for f in still_open if f.severity == severity]
        items = [
            f"[ ] {f.code} {markup.code(place(f))}: {markup.inline(title(f))}"
            for f in mine
        ]
        if items:
            yield f"**{label}** ({severity})\n\n{markup.bullets(items)}"


def _commands(run: Run) -> Iterator[str]:
    found = list(commands.diagnostics(run))
    yield "## Diagnostic commands"
    told = "\n".join(f"# {said}\n{command}" for said, command in found)
    yield markup.fence(told, "bash")


def _set_aside(run: Run, status: str, said: str) -> Iterator[str]:
    """Findings that are not open, a line each."""
    mine = [f for f in run.findings if f.status == status]
    if not mine:
        return
    yield f"## {status.capitalize()}"
    yield said
    rows = [
        (f.code, f.category, markup.code(place(f)), markup.inline(f.message))
        for f in mine
    ]
    yield markup.table(("Code", "Category", "Place", "What"), rows)


def _parts(run: Run) -> Iterator[str]:
    if run.parts:
        yield "## Parts of this check"
        rows = [
            (markup.inline(name), part.status, markup.inline(part.why))
            for name, part in run.parts.items()
        ]
        yield markup.table(("Part", "Status", "Why"), rows)


def _footer(run: Run) -> str:
    again = markup.code(f"torchproof show {run.id} --format md")
    return (
        f"---\n\nWritten by torchproof {__version__} from run {markup.code(run.id)};"
        f" {again} writes it again."
    )
