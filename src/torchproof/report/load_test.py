"""The document of a load test: the verdict, the times, and why requests were slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchproof.records import LoadTest, Run, TailCause
from torchproof.report import finding_block, load_sections, numbers, run_sections
from torchproof.report.charts import load as charts
from torchproof.report.document import (
    Block,
    Chart,
    Fold,
    Group,
    Items,
    Paragraph,
    Section,
    View,
)
from torchproof.report.finding_block import Findings
from torchproof.report.headline import headline
from torchproof.report.opening import measured, opening

_CAPTION = "After the cold phase, in ms from the intended arrival:"
_FEW = 2  # causes of a strategy, and remedies, in a report that is not verbose
_BRIEF = View.TERMINAL | View.AGENT


def document(run: Run, *, verbose: bool = False) -> Iterator[Block]:
    test = load_sections.load_test_of(run)
    question, answer = load_sections.question(test), load_sections.answer(test)
    yield from opening(run, "Load test", [*measured(run), question, answer])
    yield headline(run)
    yield Paragraph(question, "Asked", views=View.AGENT)
    yield Paragraph(answer, "Answer", views=View.AGENT)
    yield Paragraph(f"{question}.", views=View.PAPER)
    yield Paragraph(f"{answer}.", style="strong", views=View.PAPER)
    yield from _numbers(test, verbose=verbose)
    yield from _drawn(test)
    yield _slow_requests(test, verbose=verbose)
    steps = (*load_sections.remedies(run), *load_sections.more_to_ask(test))
    yield Section("Next", (Items(steps),), views=View.PAPER)
    yield from run_sections.about(run, "Findings")
    listed = finding_block.blocks(run)
    still_open = tuple(each for each in listed if each.finding.status == "open")
    yield Findings(still_open, views=View.AGENT)
    yield from _end(run, test, verbose=verbose)


# -- numbers ---------------------------------------------------------------------------


def _numbers(test: LoadTest, *, verbose: bool) -> Iterator[Section]:
    generation, said = load_sections.generation(test), ~View.AGENT
    question = load_sections.question(test)
    legend = f"{question}. Latency counts from the intended arrival, after the cold"
    legend += " phase, in ms with 98 percent intervals."
    wide = load_sections.latencies(test, intervals=True)
    brief = load_sections.latencies(test, intervals=verbose)
    more = tuple(load_sections.more_to_ask(test))
    caption = _CAPTION if test.results else ""
    blocks = (
        Paragraph(legend, style="legend", views=View.PAGE),
        Paragraph(caption, views=View.PAPER),
        Group(
            (
                Paragraph(caption, views=View.TERMINAL),
                replace(brief, views=_BRIEF),
            )
        ),
        replace(wide, views=View.READ),
        load_sections.outcomes(test),
        *([replace(generation, views=said)] if generation else ()),
        Items(tuple(load_sections.remarks(test)), style="sentences", views=said),
        Items(more, views=View.PAGE),
    )
    yield Section("Strategies", blocks, "load", style="loaded")


def _drawn(test: LoadTest) -> Iterator[Section]:
    """Latency over time, its distribution, and the rates that were tried."""
    rates = charts.rates(test)
    drawn = {
        "timeline": ("Latency over time", "Over time", charts.timelines(test)),
        "distribution": (
            "Distribution of latency",
            "Distribution",
            charts.distribution(test),
        ),
        "rates": (f"Rate against {rates.percent if rates else ''}", "Rates", rates),
    }
    for anchor, (title, label, data) in drawn.items():
        chart = Chart(anchor, data, views=View.PAGE)
        yield Section(title, (chart,), anchor, label=label, views=View.PAGE)


# -- slow requests ---------------------------------------------------------------------


def _slow_requests(test: LoadTest, *, verbose: bool) -> Section:
    blocks: list[Block] = []
    for each in load_sections.slow_requests(test):
        causes = each.causes if verbose else _largest(each.causes)
        hidden = numbers.amount(len(each.causes) - len(causes), "smaller cause")
        rest = each.rest if len(causes) == len(each.causes) else ""
        rest = rest or f"{each.rest}, {hidden} (show -v)"
        lines = [_line(cause) for cause in causes]
        title = each.title if causes else f"{each.title}: {rest}"
        listed = Items((*lines, rest) if causes else ())
        head = Paragraph(title, style="aside")
        blocks.append(Group((head, listed), views=View.TERMINAL))
        notable = [c for c in each.causes if load_sections.is_notable(c)]
        smaller = [c for c in each.causes if not load_sections.is_notable(c)]
        title = numbers.amount(len(smaller), "smaller cause")
        blocks += [
            Paragraph(each.title, style="heading", views=View.READ),
            Items(tuple(map(_line, each.causes)), views=View.PAPER),
            Chart("causes", charts.causes(notable)),
            Fold(
                title,
                (Chart("causes", charts.causes(smaller), views=View.PAGE),),
                views=View.PAGE,
            ),
            Paragraph(f"{each.rest}.", style="legend", views=View.READ),
        ]
    if names := load_sections.without_slow_requests(test):
        text = f"No slow requests: {', '.join(names)}."
        blocks.append(Paragraph(text, style="caption"))
    missing = tuple(load_sections.missing(test))
    views = View.ALL if verbose else View.READ
    blocks.append(Items(missing, style="sentences", views=views))
    title = "Why requests were slow"
    return Section(
        title, tuple(blocks), "slow", label="Slow requests", views=~View.AGENT
    )


def _line(cause: TailCause) -> str:
    return f"{load_sections.share(cause.share):>4}  {load_sections.caused(cause)}"


def _largest(causes: Sequence[TailCause]) -> tuple[TailCause, ...]:
    """Those that a reader should know first."""
    return tuple(list(filter(load_sections.is_notable, causes))[:_FEW])


# -- the end ---------------------------------------------------------------------------


def _end(run: Run, test: LoadTest, *, verbose: bool) -> Iterator[Block]:
    remedies = tuple(load_sections.remedies(run))
    steps = (*remedies[: None if verbose else _FEW], *load_sections.more_to_ask(test))
    codes = [finding.code for finding in run.findings if finding.status == "open"]
    plots = f"torchproof show {run.id} --format html -o load.html"
    blocks = (
        Items(steps, "Next"),
        Paragraph(f"Explain one: torchproof rule {codes[0]}" if codes else ""),
        Paragraph(f"Plots: {plots}" if run.id else ""),  # it is saved
    )
    yield Group(blocks, views=View.TERMINAL)
