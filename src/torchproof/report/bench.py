"""Renders a bench run as terminal text: times with bars, costs, details, decision."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Measurement, Run
from torchproof.report import bench_sections, numbers, run_words, text_layout
from torchproof.report.text_layout import INDENT, aligned, wrap

_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"  # by eighths
_FULL, _SHADE = "\u2588", "\u2592"
_LEAST_BAR, _MOST_BAR = 10, 40


def render(run: Run, *, width: int = 80) -> str:
    """Steady-state times with bars, then costs, details, variants and the decision."""
    width = max(width, 40)
    blocks = [[*header(run, width)], [*_steady(run, width)]]
    rows = bench_sections.timed(run)
    if rows:
        blocks.append([*bench_sections.costs(run).text(width)])
    blocks += [[*_details(row, width)] for row in rows]
    blocks += [[*section.text(width)] for section in bench_sections.variants(run)]
    missing = bench_sections.not_ranked(run)
    if missing:
        blocks.append(["Not ranked:", *text_layout.items(missing, width)])
    blocks.append([*_ending(run, width)])
    return text_layout.joined(blocks)


def header(run: Run, width: int) -> Iterator[str]:
    yield from opening(run, width)
    rounds = max((len(row.rounds_ms) for row in run.measurements), default=0)
    if rounds:
        every = dict.fromkeys(map(bench_sections.processes, run.measurements))
        sources = ", ".join(filter(None, every))
        covered = f" ({sources} per strategy)" if sources else " over processes"
        yield from wrap(
            f"median time per call with its 95 percent interval{covered}, in"
            f" {numbers.amount(rounds, 'round')} that interleave the strategies",
            width,
        )
    yield from incomplete(run, width)


def opening(run: Run, width: int) -> Iterator[str]:
    """The target, its size, and the environment of the run."""
    facts = run.environment
    device = facts.get("gpu") or facts.get("device")
    text = f"{run.verb} of {run.target}"
    text += f" ({facts['size']})" if facts.get("size") else ""
    text += f" on {device}" if device else ""
    text += f", torch {facts['torch']}" if facts.get("torch") else ""
    if facts.get("threads"):
        text += f", {numbers.amount(facts['threads'], 'thread')}"
        text += " per rank" if facts.get("ranks") else ""
    yield from wrap(text, width)
    if ranks := run_words.measured_ranks(run):
        yield from wrap(f"{ranks}; the slowest rank of each pass counts", width)


def incomplete(run: Run, width: int) -> Iterator[str]:
    if why := run_words.incomplete(run):
        yield from wrap(f"Incomplete: {why}. Results so far follow.", width)


# -- the bars --------------------------------------------------------------------------


def _steady(run: Run, width: int) -> Iterator[str]:
    rows = bench_sections.timed(run)
    if not rows:
        return
    head, cells = ("strategy", "median", "interval"), list(map(_time_cells, rows))
    widths = text_layout.widths([head, *cells])
    verdicts = list(map(bench_sections.verdict, rows))
    room = width - sum(widths) - 8 - max(map(len, verdicts))
    narrow = room < _LEAST_BAR  # the name then gets a line of its own
    if narrow:
        room += widths[0] - len(INDENT) + 2
    length = max(_LEAST_BAR, min(_MOST_BAR, room))
    end = max(row.high_ms or row.median_ms or 0.0 for row in rows)
    scale = f"0{numbers.milliseconds(end):>{length - 1}}"
    bars = [bar(row, end=end, length=length) for row in rows]
    ends = [f"{b:<{length}}  {v}" for b, v in zip(bars, verdicts, strict=True)]
    for row, last in zip((head, *cells), (scale, *ends), strict=True):
        if narrow:
            yield row[0]
            yield f"{INDENT}{aligned(row[1:], widths[1:], head[1:])}  {last}"
        else:
            yield f"{aligned(row, widths, head)}  {last}"
    if any(_SHADE in drawn for drawn in bars):
        yield f"{INDENT}{_SHADE} interval of the median"


def _time_cells(row: Measurement) -> tuple[str, ...]:
    spread = numbers.interval(row.low_ms, row.high_ms)
    return row.strategy, numbers.milliseconds(row.median_ms), spread


def bar(row: Measurement, *, end: float, length: int) -> str:
    """Solid up to the interval and shaded over it, accurate to an eighth of a cell.

    An interval within one cell is too short to draw: the bar then ends at the median.
    """
    assert row.median_ms is not None
    scale = length / end if end else 0.0
    middle = row.median_ms * scale
    low, high = (
        middle if edge is None else edge * scale for edge in (row.low_ms, row.high_ms)
    )
    solid, last = int(low), min(length - 1, int(high))
    if last > solid:
        return _FULL * solid + _SHADE * (last - solid + 1)
    eighths = min(length * 8, round(middle * 8))
    part = _EIGHTHS[eighths % 8] if eighths % 8 else ""
    return _FULL * (eighths // 8) + part


def _details(row: Measurement, width: int) -> Iterator[str]:
    lines = list(bench_sections.details(row))
    if lines:
        yield row.strategy
        yield from text_layout.items(lines, width)


def _ending(run: Run, width: int) -> Iterator[str]:
    decision, row = bench_sections.chosen(run)
    yield from wrap(f"Decision: {decision}.", width)
    if row and row.source:
        yield from text_layout.code(row.source)
    yield f"Saved as run {run.id}."
