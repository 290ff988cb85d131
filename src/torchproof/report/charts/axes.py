"""Axes of plots: from values to positions in percent, with readable ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOG_FROM = 8.0  # ratio of the largest to the smallest value that needs a log axis
MOST_TICKS = 6
_EDGE = 0.07  # margin on each side, as a fraction of the range


@dataclass(frozen=True)
class Axis:
    log: bool
    ticks: tuple[tuple[float, str], ...]


Place = Callable[[float], float]


@dataclass(frozen=True)
class Mark:
    """A point with a tooltip; its label is drawn if there is room."""

    name: str
    kind: str  # the shape: eager, chosen, met, missed...
    tone: str
    x: float
    y: float
    title: str
    label: str = ""
    anchor: str = "start"
    dx: float = 0.0
    dy: float = 0.0


@dataclass(frozen=True)
class Plot:
    """Points between two axes. `words` are for screen readers."""

    marks: tuple[Mark, ...]  # the last is drawn on top
    x: Axis
    y: Axis
    names: tuple[str, str]  # of the axes
    keys: tuple[tuple[str, str, str], ...]  # shape, tone and meaning
    words: str
    legend: str
    height: int = 300
    paths: tuple[tuple[str, str], ...] = ()  # tones and paths
    limit: float | None = None
    missing: tuple[str, ...] = ()  # what has no place


def axis(
    values: Sequence[float], text_of: Callable[[float], str], *, log: bool | None = None
) -> tuple[Place, Axis]:
    """The function from a value to its position in percent, and the axis.

    Without `log`, the range of the values decides whether the axis is logarithmic.
    """
    least, most = min(values), max(values)
    if log is None:
        log = least > 0 and most / least >= LOG_FROM
    if log:  # which has no place for 0, such as a limit of 0 ms
        least = min((value for value in values if value > 0), default=1.0)
        most = max(most, least)
    low, high = (math.log10(least), math.log10(most)) if log else (least, most)
    # The minimum range keeps nearly equal times close together.
    edge = max((high - low) * _EDGE, 0.05 if log else abs(high) * 0.02)
    return _spanning(low - edge, high + edge, text_of, log=log)


def from_zero(end: float, text_of: Callable[[float], str]) -> tuple[Place, Axis]:
    """A linear axis from 0 to exactly `end`."""
    return _spanning(0.0, end, text_of, log=False)


def _spanning(
    low: float, high: float, text_of: Callable[[float], str], *, log: bool
) -> tuple[Place, Axis]:
    """With the ends of a log axis as powers of ten."""

    def place(value: float) -> float:
        if log:
            value = math.log10(value) if value > 0 else low
        return 100 * (value - low) / (high - low)

    values = _log_ticks(low, high) if log else _even_ticks(low, high)
    ticks = [(round(place(value), 2), text_of(value)) for value in values]
    return place, Axis(log, tuple(ticks))


def upwards(axis: Axis) -> Axis:
    """The same axis with positions from the top, as SVG counts them."""
    return Axis(axis.log, tuple((round(100 - at, 2), text) for at, text in axis.ticks))


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times each power of ten, or fewer if the range is wide."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        every = [float(f"{digit}e{power}") for power in powers for digit in digits]
        # A power below the smallest float is 0.
        ticks = [value for value in every if value and low <= math.log10(value) <= high]
        if len(ticks) <= MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)]


def _even_ticks(low: float, high: float) -> list[float]:
    power = 10.0 ** math.floor(math.log10((high - low) / MOST_TICKS))
    steps = [digit * power for digit in (1, 2, 5, 10)]
    step = next(s for s in steps if (high - low) / s <= MOST_TICKS)
    first = math.ceil(max(low, 0.0) / step)
    last = math.floor(high / step)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def seconds(value: float) -> str:
    return f"{value:g} s" if value >= 0.1 or value == 0 else f"{value * 1e3:g} ms"


def milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1e3:g} s"
    return f"{value:g} ms" if value >= 0.1 else f"{value * 1e3:g} us"
