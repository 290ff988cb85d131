"""The document of a load test: the verdict, the times, and why requests were slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchproof.records import LoadResult, LoadTest, Run, TailCause
from torchproof.report import (
    finding_block,
    load_sections,
    numbers,
    run_sections,
    verdicts,
)
from torchproof.report.charts import load as charts
from torchproof.report.document import (
    Block,
    Chart,
    Fold,
    Group,
    Items,
    Paragraph,
    Section,
    Tile,
    Verdict,
    View,
)
from torchproof.report.finding_block import Findings
from torchproof.report.opening import first_lines, opening

_CAPTION = "After the cold phase, in ms from the intended arrival:"
_FEW = 2  # causes of a strategy, and remedies, in a report that is not verbose
_BRIEF = View.TERMINAL | View.AGENT


def document(run: Run, *, verbose: bool = False) -> Iterator[Block]:
    test = load_sections.load_test_of(run)
    question, answer = load_sections.question(test), load_sections.answer(test)
    yield from opening(run, "Load test", [*first_lines(run), question, answer])
    best, judged = load_sections.best(test), load_sections.judged_percent(test)
    yield verdicts.with_tiles(run, _verdict(run), _tiles(best, judged))
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
    said = ~View.AGENT
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
        replace(load_sections.generation(test), views=said),
        Items(tuple(load_sections.remarks(test)), style="sentences", views=said),
        Items(more, views=View.PAGE),
    )
    yield Section("Strategies", blocks, "load", style="loaded")


def _drawn(test: LoadTest) -> Iterator[Section]:
    """Latency over time, its distribution, and the rates that were tried."""
    percent = charts.tried_percent(test)
    drawn = {
        "timeline": ("Latency over time", "Over time", charts.timelines(test)),
        "distribution": (
            "Distribution of latency",
            "Distribution",
            charts.distribution(test),
        ),
        "rates": (f"Rate against {percent}", "Rates", charts.rates(test)),
    }
    for anchor, (title, label, data) in drawn.items():
        kind = "plot" if anchor == "rates" else anchor
        chart = Chart(kind, data, views=View.PAGE)
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


# -- the verdict -----------------------------------------------------------------------


def _verdict(run: Run) -> Verdict:
    test = load_sections.load_test_of(run)
    more = (_largest_cause(run),) if _largest_cause(run) else ()
    if test.objective is None:
        return Verdict("open", "no objective", load_sections.answer(test), more)
    text = f"{load_sections.objective(test.objective)}: {load_sections.verdicts(test)}."
    found = [result.verdict for result in test.results]
    met = found.count("met")
    if met and met == len(found):
        return Verdict("good", "objective met", text, more)
    if met:
        word = f"objective met by {met} of {numbers.amount(len(found), 'strategy')}"
        return Verdict("open", word, text, more)
    word = "undecided" if "undecided" in found else "missed"
    tone = "bad" if word == "missed" else "open"
    return Verdict(tone, f"objective {word}", text, more)


def _largest_cause(run: Run) -> str:
    """The cause of slow requests with the largest excess, after the cold phase."""
    every = [
        (cause, result)
        for result in load_sections.load_test_of(run).results
        for cause in (result.tail.causes if result.tail else ())
    ]
    if not every:
        return ""
    cause, result = max(every, key=lambda each: each[0].excess_ms or 0.0)
    part = load_sections.share(cause.share)
    text = f"{cause.code} {cause.text}, {load_sections.involved(cause)}"
    return f"{part} of the excess of {result.strategy}'s slow requests: {text}."


def _tiles(result: LoadResult | None, judged: float) -> Iterator[Tile]:
    """The numbers of the strategy with the shortest tail, preferably one that met."""
    if result is None:
        return
    name, cold = result.strategy, result.cold
    for percent in (50.0, judged):
        if row := load_sections.at(load_sections.latency_of(result), percent):
            spread = numbers.interval(row.low_ms, row.high_ms)
            note = name if spread == numbers.UNKNOWN else f"{name}, {spread}"
            label = f"Latency {load_sections.percent_name(row.percent)}"
            yield Tile(label, numbers.milliseconds(row.value_ms), note)
    offered = f"{name}, of {numbers.per_second(result.offered_rate)} offered"
    yield Tile("Goodput", numbers.per_second(result.goodput_rate), offered)
    yield Tile("First answer", numbers.seconds(result.first_answer_after_s), name)
    if cold:
        note = f"{name}, of {numbers.amount(cold.requests, 'request')}"
        yield Tile("Missed until warm", numbers.count(cold.missed), note)
    yield Tile("Highest rate", numbers.per_second(result.highest_rate), name)
