"""The sections that documents of all runs share: times, findings, history, the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torchproof.records import CompileSite, Measurement, Part, Run
from torchproof.report import (
    bench_sections,
    commands,
    earlier_run,
    finding_block,
    numbers,
    run_words,
)
from torchproof.report.charts import bars
from torchproof.report.document import (
    Block,
    Card,
    Cell,
    Chart,
    Code,
    Facts,
    Fold,
    Group,
    Items,
    Listing,
    Paragraph,
    Rule,
    Section,
    Steps,
    Table,
    Text,
    View,
)
from torchproof.report.finding_block import FindingBlock, Findings

MOST_COSTS = 12  # bars in a chart that shows only the largest values
_MOST_LINES = 50  # of findings that are not open
_ARGUMENTS = ("backend", "mode", "dynamic", "fullgraph", "options")
_LEGEND = (
    "The bar shows the median time per call, the whisker its 95 percent interval, the"
    " ticks below it the medians of the rounds"
)


# -- times -----------------------------------------------------------------------------


def strategies(run: Run, title: str) -> Section:
    """The times of the strategies, with the code of the one that a bench chose."""
    rows, drawn = bench_sections.timed(run), bars.strategies(run)
    chosen = bench_sections.chosen(run)[1] if run.verb == "bench" else None
    brief = View.TERMINAL | View.AGENT if run.verb == "bench" else View(0)
    same = ", ".join(f"{key} {value}" for key, value in bars.shared(run).items())
    blocks: tuple[Block, ...] = (
        Chart("bars", drawn),
        Paragraph(_legend(drawn) if drawn else "", style="legend", views=View.PAGE),
        replace(bench_sections.measured(rows), views=View.PAPER | View.AGENT),
        replace(bench_sections.costs(run), views=View.TERMINAL),
        Listing(
            chosen.source if chosen else "",
            "python",
            f"Code for {chosen.strategy}" if chosen else "",
            views=View.PAGE,
        ),
        Items(tuple(bench_sections.not_ranked(run)), "Not ranked"),
        details([(row.strategy, row) for row in rows], View.READ | View.TERMINAL),
    )
    return Section(title, blocks, "strategies", same, views=View.READ | brief)


def details(rows: Iterable[tuple[str, Measurement]], views: View) -> Fold:
    blocks = [Items(tuple(bench_sections.details(row)), name) for name, row in rows]
    return Fold("Other measurements", tuple(blocks), views=views)


def _legend(drawn: bars.Bars) -> str:
    text = _LEGEND
    text += "; the dashed line is eager." if drawn.reference is not None else "."
    beyond = f" Rounds beyond the scale: {drawn.beyond}." if drawn.beyond else ""
    return f"{text}{beyond}"


def time(run: Run, listed: tuple[FindingBlock, ...] = ()) -> Section:
    """Where the time goes: compile phases, shares of a call, costs of findings."""
    phases, costly = bars.phases(run), _costs(listed)
    shares = bars.shares(run)
    if not (len(shares) > 1 or phases or costly):
        shares = []  # a tile shows the share of compiled calls
    meters = [Chart("meters", each, title) for title, each in shares]
    blocks = (
        Chart("phases", phases, "Compile time by phase"),
        Group(tuple(meters), in_columns=True),
        Chart("costs", costly, "Findings by cost per call"),
    )
    return Section("Where the time goes", blocks, "time", label="Time", views=View.PAGE)


def _costs(listed: Iterable[FindingBlock]) -> list[tuple[FindingBlock, float]]:
    """The open findings with the highest measured costs, and the lengths of bars."""
    every = finding_block.everything(list(listed))
    costly = [(b.finding.cost_us or 0.0, b) for b in every if b.cost]
    costly = [each for each in costly if each[1].finding.status == "open"]
    costly.sort(key=lambda each: -each[0])
    most = max((cost for cost, _ in costly), default=0.0) or 1.0
    return [(b, round(100 * cost / most, 2)) for cost, b in costly[:MOST_COSTS]]


def shapes(run: Run) -> Iterator[Block]:
    """Charts of the sizes that a run varied, tables of other variants."""
    sweeps = bars.sweeps(run)
    tables = [
        replace(table, views=~View.PAGE) if table.style == "sweep" else table
        for table in bench_sections.variants(run)
    ]
    has_others = any(table.style != "sweep" for table in tables)
    hint = "A diamond marks a size that recompiled the strategy."
    blocks: list[Block] = [Chart("bars", c, c.title, views=View.PAGE) for c in sweeps]
    blocks.append(Paragraph(hint if sweeps else "", style="legend", views=View.PAGE))
    blocks += tables
    title = "Shapes and settings" if has_others else "Shapes"
    title = title if sweeps else "Settings"
    views = View.ALL if run.verb == "bench" else View.READ
    yield Section(title, tuple(blocks), "shapes", views=views)
    missing = {
        "strategies": bars.strategies(run) or sweeps,
        "compile phases": bars.phases(run),
        "the cost of findings": any(f.cost_us is not None for f in run.findings),
        "a sweep of shapes": sweeps,
    }
    names = ", ".join(name for name, found in missing.items() if not found)
    text = f"Not measured in this run: {names}." if names else ""
    yield Paragraph(text, style="missing", views=View.PAGE)


# -- findings and what stands around them ----------------------------------------------


def about(run: Run, title: str, empty: str = "") -> Iterator[Block]:
    """What a page says of any run: findings, configuration, history, rules, the run."""
    listed = finding_block.by_severity(finding_block.blocks(run))
    total = finding_block.totals(listed) or (str(len(listed)) if listed else "")
    label = f"{title} ({len(run.findings)})" if run.findings else ""
    still_open = tuple(each for each in listed if each.finding.status == "open")
    yield Findings(still_open, views=View.REVIEW)
    every = finding_block.everything(listed)
    drafts = Paragraph(finding_block.about_drafts(run, every), style="legend")
    blocks = (drafts, Findings(tuple(listed), empty=empty))
    anchor = "findings" if listed else ""
    yield Section(title, blocks, anchor, total, label, views=View.PAGE)
    yield configuration(run)
    yield history(run, listed)
    rules = tuple(Rule(code, text) for code, text in run.rules.items())
    title = "The rules behind the findings"
    yield Section(title, rules, "rules", label="Rules", views=View.PAGE)
    yield Section("The run", tuple(_the_run(run)), "run")


def configuration(run: Run) -> Section:
    """The calls of torch.compile in the source."""
    blocks: list[Block] = []
    if run.verb == "check":
        blocks = [Paragraph(text, views=View.PAPER) for text in _configured(run)]
    blocks += map(_card, run.configuration)
    title = "Calls of torch.compile"
    label = "torch.compile calls"
    return Section(title, tuple(blocks), "configuration", label=label, views=View.READ)


def _card(site: CompileSite) -> Card:
    text = (Code(_lines(site)), _inside(site.function), ": compiles ")
    given = {name: getattr(site, name) for name in _ARGUMENTS}
    tags = [f"{name}={value}" for name, value in given.items() if value is not None]
    tags += [f"{site.order} DDP or FSDP"] if site.order else []
    words, source = site.observation, site.source or ""
    whole = (*text, Code(site.subject), _called(site.calls))
    return Card(whole, tuple(tags), words, source)


def _configured(run: Run) -> Iterator[Text]:
    """How the target is compiled, if its source does not say so."""
    if run.strategy not in {"", "as-written"} and run.counts.get("calls"):
        yield "torchproof compiled the target: strategy ", Code(run.strategy), "."
    if run.configuration:
        return
    if run.parts.get("static", Part("skipped")).status == "skipped":
        yield "The check did not read the source."
    else:
        yield "The target's source has no call of `torch.compile`."


def _lines(site: CompileSite) -> str:
    last = f"-{site.end_line}" if site.end_line > site.line else ""
    return f"{run_words.place(site)}{last}"


def _inside(function: str | None) -> str:
    return f" in {function}" if function else ""


def _called(calls: int | None) -> str:
    return "" if calls is None else f", called {numbers.amount(calls, 'time')}"


def history(run: Run, listed: Iterable[FindingBlock]) -> Section:
    """The numbers of the earlier run beside those of this one, and what is gone."""
    blocks: list[Block] = []
    if run.baseline:
        before = Code(run.baseline.id or "-")
        since = run.baseline.started.replace("T", " ") if run.baseline.started else ""
        text: tuple[str, ...] = ("Compared with run ", before)
        text += (f" of {since}." if since else ".",)
        if differences := earlier_run.unlike(run):
            text += (f" The environments differ ({'; '.join(differences)}), so the",)
            text += (" times are not comparable.",)
        command = Code(f"torchproof compare {run.baseline.id or '-'} {run.id}")
        text += (" ", command, " shows which times differ significantly.")
        rows = tuple(
            (
                change.name,
                change.before,
                Cell(change.after, change.verdict, change.tone),
            )
            for change in earlier_run.changes(run)
        )
        header = ("metric", "before", "after")
        blocks += [Paragraph(text), Table("", header, rows, style="changes")]
    titles = {
        "resolved": "Resolved since that run",
        "intentional": "Intentional, not counted",
    }
    for status, title in titles.items():
        those = [each for each in listed if each.finding.status == status]
        lines = tuple(each.in_one_line for each in those[:_MOST_LINES])
        if more := len(those) - _MOST_LINES:
            lines += (f"{more} more are in the list of findings",) if more > 0 else ()
        heading = f"{title} ({len(those)})"
        blocks.append(Items(lines, heading, style="heading"))
    return Section("Before and after", tuple(blocks), "history", views=View.READ)


def _the_run(run: Run) -> Iterator[Block]:
    yield _parts(run.parts)
    facts = dict(_environment(run.environment))
    yield Facts(tuple(facts.items()), "Environment", views=View.PAGE)
    yield Listing(run.command, "bash", "Command", views=View.PAGE)
    if run.verb == "check":
        steps = tuple(commands.diagnostics(run))
        yield Steps(steps, "Next commands", views=View.READ)


def _parts(parts: Mapping[str, Part]) -> Table:
    rows = [
        (name, Cell("", part.status, f"is-{part.status}"), part.why or "-")
        for name, part in parts.items()
    ]
    header = ("part", "status", "reason")
    return Table("Parts", header, tuple(rows), style="parts", views=View.READ)


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The environment as (name, value); each environment variable has a row."""
    for key, value in environment.items():
        if isinstance(value, Mapping):
            yield from ((str(name), str(each)) for name, each in value.items())
        elif value is not None and value != "":
            yield key.replace("_", " ") if key.islower() else key, str(value)
