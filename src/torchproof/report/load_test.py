"""Renders a load test as terminal text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.records import LoadTest, Run, TailCause
from torchproof.report import bench, load_sections, markup, numbers, text_layout
from torchproof.report.heading import heading
from torchproof.report.text_layout import INDENT, wrap

_CAPTION = "After the cold phase, in ms from the intended arrival:"
_FEW = 2  # causes of a strategy, and remedies, in a report that is not verbose


def render(run: Run, *, width: int = 80, verbose: bool = False) -> str:
    """The verdict, one row per strategy, the causes of the tail, what to do next."""
    width = max(width, 40)
    test = load_sections.load_test_of(run)
    blocks = [[*_opening(run, width)]]
    if test.results:
        latencies = load_sections.latencies(test, intervals=verbose)
        blocks.append([*wrap(_CAPTION, width), *latencies.text(width)])
        blocks.append([*load_sections.outcomes(test).text(width)])
    if tokens := load_sections.generation(test):
        blocks.append([*tokens.text(width)])
    blocks.append([*_paragraphs(load_sections.remarks(test), width)])
    blocks.append([*_slow_requests(test, width, verbose=verbose)])
    blocks.append([*_ending(run, width, verbose=verbose)])
    return text_layout.joined(blocks)


def _opening(run: Run, width: int) -> Iterator[str]:
    test = load_sections.load_test_of(run)
    yield from bench.opening(run, width)
    yield from wrap(load_sections.question(test), width)
    yield from wrap(load_sections.answer(test), width)
    yield from bench.incomplete(run, width)


def _slow_requests(test: LoadTest, width: int, *, verbose: bool) -> Iterator[str]:
    for section in load_sections.slow_requests(test):
        causes = section.causes if verbose else _largest(section)
        hidden = numbers.amount(len(section.causes) - len(causes), "smaller cause")
        rest = (
            section.rest
            if len(causes) == len(section.causes)
            else (f"{section.rest}, {hidden} (show -v)")
        )
        if not causes:
            yield from wrap(f"{section.title}: {rest}", width, "", INDENT)
            continue
        yield from wrap(section.title, width)
        for cause in causes:
            first = f"{INDENT}{load_sections.share(cause.share):>4}  "
            text = load_sections.caused(cause)
            yield from wrap(text, width, first, " " * len(first))
        yield from wrap(rest, width, INDENT)
    if names := load_sections.without_slow_requests(test):
        yield from wrap(f"No slow requests: {', '.join(names)}", width)


def _largest(section: load_sections.SlowRequests) -> tuple[TailCause, ...]:
    """Those that a reader should know first."""
    notable = list(filter(load_sections.is_notable, section.causes))
    return tuple(notable[:_FEW])


def _ending(run: Run, width: int, *, verbose: bool) -> Iterator[str]:
    test = load_sections.load_test_of(run)
    remedies = list(load_sections.remedies(run))
    steps = [*(remedies if verbose else remedies[:_FEW])]
    steps += load_sections.more_to_ask(test)
    if steps:
        yield "Next:"
        yield from text_layout.items(steps, width)
    if verbose:
        yield from _paragraphs(load_sections.missing(test), width)
    codes = [finding.code for finding in run.findings if finding.status == "open"]
    if codes:
        yield f"Explain one: torchproof rule {codes[0]}"
    if run.id:  # it is saved
        yield f"Plots: torchproof show {run.id} --format html -o load.html"


def _paragraphs(lines: Iterable[str], width: int) -> Iterator[str]:
    for line in lines:
        yield from wrap(line, width, "", INDENT)


def markdown(run: Run) -> Iterator[str]:
    test = load_sections.load_test_of(run)
    yield from heading(run, "Load test")
    yield markup.prose(f"{load_sections.question(test)}.")
    yield f"**{markup.inline(load_sections.answer(test))}.**"
    if test.results:
        yield f"## Latency\n\n{_CAPTION}"
        yield load_sections.latencies(test, intervals=True).markdown()
        yield f"## Goodput and cold phase\n\n{load_sections.outcomes(test).markdown()}"
    if tokens := load_sections.generation(test):
        yield tokens.markdown()
    yield _list(load_sections.remarks(test))
    yield from _slow_requests_markdown(test)
    yield _list(load_sections.missing(test))
    steps = [*load_sections.remedies(run), *load_sections.more_to_ask(test)]
    if steps:
        yield f"## Next\n\n{_list(steps)}"


def _slow_requests_markdown(test: LoadTest) -> Iterator[str]:
    for section in load_sections.slow_requests(test):
        yield f"## {markup.inline(section.title)}"
        rows = [
            (
                load_sections.share(cause.share),
                markup.inline(load_sections.caused(cause)),
            )
            for cause in section.causes
        ]
        if rows:
            yield markup.table(("Share of the excess", "Cause"), rows)
        yield markup.prose(f"{section.rest}.")
    if names := load_sections.without_slow_requests(test):
        yield markup.prose(f"No slow requests: {', '.join(names)}.")


def _list(lines: Iterable[str]) -> str:
    return markup.bullets(map(markup.inline, lines))
