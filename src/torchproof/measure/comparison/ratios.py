"""Ratios of two rows with intervals; above 1, the second row is better.

Strategies of one run are sampled side by side, so their rounds are paired. Rows of two
runs are not: each side is drawn separately (`stats.draws`), and the interval includes
the variance between processes on both sides. It cannot include other changes between
two runs; thresholds, and eager as a control, account for those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from torchproof.records import Measurement, Ratio, stats

LEAST_MS, MOST_MS = 1e-12, 1e15  # range of a valid time

_Numbers = np.ndarray[Any, np.dtype[np.float64]]
_Interval = tuple[float | None, float | None]


def side_by_side(base: Measurement, other: Measurement) -> Ratio | None:
    """The time of one row over that of another row of the same run."""
    rounds = list(zip(base.rounds_ms, other.rounds_ms, strict=False))
    if not rounds:
        return None
    repeats = base.repeats if base.repeats == other.repeats else ()
    first, second = zip(*rounds, strict=True)
    variation = max(_variation(base), _variation(other))
    whole = sum(repeats) == len(rounds) and all(count > 0 for count in repeats)
    return stats.compare(
        first, second, repeats=repeats if whole else (), variation=variation
    )


def unusable(row: Measurement) -> str:
    """Why the times of a row are invalid; empty if they can be compared.

    The schema check of a saved run does not reject zeros, and rows of this process are
    not checked at all.
    """
    times = {"median": row.median_ms, "interval": row.low_ms, "p95": row.p95_ms}
    times["upper end of the interval"] = row.high_ms
    for name, value in times.items():
        if value is not None and not _is_time(value):
            return f"its {name} is {value:g} ms"
    gains = (row.vs_eager, row.vs_eager_low, row.vs_eager_high)
    if not all(value is None or 0 < value < math.inf for value in gains):
        return "its gain over eager is not a positive number"
    if not 0 <= _variation(row) < math.inf:
        return f"its process-to-process variation is {row.luck}"
    for rounds in (row.rounds_ms, row.tail_rounds_ms):
        for number, samples_ms in enumerate(rounds):
            if not samples_ms:
                return f"its round {number} has no samples"
            bad = [value for value in samples_ms if not _is_time(value)]
            if bad:
                return f"its round {number} holds a sample of {bad[0]:g} ms"
    return ""


def _is_time(value: float) -> bool:
    return LEAST_MS <= value <= MOST_MS  # NaN is neither


# -- ratios of two runs ----------------------------------------------------------------


class _Side(NamedTuple):
    """One of two rows: how to draw its logarithm, and its content as a key."""

    rounds: int
    draw: Callable[[int], _Numbers]  # by seed
    key: tuple[Any, ...]


def of_speed(a: Measurement, b: Measurement) -> Ratio | None:
    """The time per call of A over that of B, of two runs."""
    if a.median_ms is None or b.median_ms is None:
        return None
    sides = [
        _side(np.log([median(each) for each in row.rounds_ms]), row) for row in (a, b)
    ]
    stated = _difference((a.low_ms, a.high_ms), (b.low_ms, b.high_ms))
    return _ratio(a.median_ms, b.median_ms, sides, stated)


def of_gain(
    a: tuple[Measurement, Measurement], b: tuple[Measurement, Measurement]
) -> Ratio | None:
    """B's gain over eager relative to A's; takes (eager, row) of each run.

    Within a run, eager and the row are sampled side by side, so drift of the machine
    does not affect the gain of a round.
    """
    old, new = a[1], b[1]
    if not old.vs_eager or not new.vs_eager:
        return None
    sides = [_side(_log_gains(*pair), pair[1], pair[0]) for pair in (b, a)]
    stated = _difference(
        (new.vs_eager_low, new.vs_eager_high), (old.vs_eager_low, old.vs_eager_high)
    )
    return _ratio(new.vs_eager, old.vs_eager, sides, stated)


def of_tail(a: Measurement, b: Measurement) -> Ratio | None:
    """The 95th percentile of A over that of B."""
    if a.p95_ms is None or b.p95_ms is None:
        return None
    return _ratio(a.p95_ms, b.p95_ms, [_tail_side(a), _tail_side(b)], (None, None))


def tails_differ(a: Measurement, b: Measurement) -> str:
    """Why the 95th percentiles of two rows are not of the same samples, else empty."""
    if bool(a.tail_rounds_ms) == bool(b.tail_rounds_ms):
        return ""
    name = "B" if a.tail_rounds_ms else "A"
    return f"the tail of {name} leaves out interrupted samples: measure it again"


def _side(logs: _Numbers, *rows: Measurement) -> _Side:
    """The mean over repeats, with other rounds and other processes.

    With eager as a second row, two processes vary.
    """
    parts = stats.parts_of(logs, rows[0].repeats)
    variation = math.sqrt(len(rows)) * _variation(rows[0])
    return _Side(
        len(logs), lambda seed: stats.draws(parts, variation, seed=seed), _key(*rows)
    )


def _tail_side(row: Measurement) -> _Side:
    """Of all samples; those of an older run leave out interrupted ones."""
    rounds: Sequence[Sequence[float]] = row.tail_rounds_ms or row.rounds_ms

    def draw(seed: int) -> _Numbers:
        return stats.tail_draws(rounds, row.repeats, _variation(row), seed=seed)

    return _Side(len(rounds), draw, _key(row))


def _log_gains(eager: Measurement, row: Measurement) -> _Numbers:
    pairs = zip(eager.rounds_ms, row.rounds_ms, strict=False)
    return np.array([math.log(median(e)) - math.log(median(r)) for e, r in pairs])


def _variation(row: Measurement) -> float:
    """How much processes differ; that of a CPU if one process could not show it."""
    unknown = row.luck is None or (row.luck == 0 and (row.processes or 1) < 2)
    return stats.SAME_LAYOUT_VARIATION if unknown or row.luck is None else row.luck


def _key(*rows: Measurement) -> tuple[Any, ...]:
    """Orders two sides by their content."""
    return tuple((r.median_ms, r.rounds_ms, r.repeats, _variation(r)) for r in rows)


def _difference(a: _Interval, b: _Interval) -> _Interval:
    """The logarithms of the outermost ratios of two intervals."""
    if not (a[0] and a[1] and b[0] and b[1]):
        return None, None
    return math.log(a[0]) - math.log(b[1]), math.log(a[1]) - math.log(b[0])


def _ratio(
    above: float, below: float, sides: Sequence[_Side], stated: _Interval
) -> Ratio:
    """From the rounds; with too few of them, `stated` is the interval."""
    value = math.log(above) - math.log(below)
    if min(side.rounds for side in sides) < stats.FEWEST_ROUNDS:
        return stats.ratio_of(value, *stated)
    low, high = stats.interval(_apart(*sides))
    return stats.ratio_of(value, min(low, value), max(high, value))


def _apart(a: _Side, b: _Side) -> _Numbers:
    """Draws of A minus draws of B, exactly negated if A and B are swapped.

    The content of a side decides its seed, not whether it is A or B.
    """
    if a.key > b.key:
        return -_apart(b, a)
    drawn = a.draw(0) - b.draw(1)
    return np.concatenate([drawn, -drawn]) if a.key == b.key else drawn
