"""What the verdicts of verbs share: how they are shown, and the worth of a strategy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchproof.records import Measurement, Run
from torchproof.report import bench_sections, numbers, run_words
from torchproof.report.document import Tile, Verdict, View

_SHOWN = View.PAGE | View.REVIEW


def with_tiles(run: Run, verdict: Verdict, tiles: Iterable[Tile]) -> Verdict:
    """The verdict with its tiles; what was not measured has none."""
    known = tuple(tile for tile in tiles if tile.value != numbers.UNKNOWN)
    if why := run_words.incomplete(run):
        so_far = f"Results so far: {verdict.text}" if verdict.text else ""
        verdict = Verdict("bad", "incomplete", f"{why}.", (so_far,) if so_far else ())
    return replace(verdict, tiles=known, views=_SHOWN)


def worth(row: Measurement | None, eager: Measurement | None) -> Iterator[Tile]:
    """What a strategy gains and costs, beside eager."""
    if row is None:
        return
    base = eager or Measurement("eager")
    if row.vs_eager is not None:
        gain = row.verdict or numbers.times(row.vs_eager, None, None)
        yield Tile("Against eager", gain, f"{row.strategy}, {_spread(row)}")
    usual, size = numbers.milliseconds(base.median_ms), numbers.size(base.peak_bytes)
    paid = f"break-even: {row.break_even}" if row.break_even else ""
    reference = (row.numerics or {}).get("reference")
    yield Tile(
        "Median call", numbers.milliseconds(row.median_ms), _noted("eager", usual)
    )
    yield Tile("First call", numbers.seconds(row.first_call_s), paid)
    yield Tile("Peak memory", numbers.size(row.peak_bytes), _noted("eager", size))
    note = f"compared with {reference}" if reference else ""
    yield Tile("Outputs", bench_sections.numerics(row), note)


def _noted(name: str, value: str) -> str:
    return "" if value == numbers.UNKNOWN else f"{name} {value}"


def _spread(row: Measurement) -> str:
    """The interval of the gain, in the direction of the verdict."""
    low, high = row.vs_eager_low, row.vs_eager_high
    if low and high and high < 1:
        low, high = 1 / high, 1 / low
    return numbers.interval(low, high)
