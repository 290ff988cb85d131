"""Ratios of two rows with intervals; above 1, the second row is better.

Strategies of one run are sampled side by side, so their rounds are paired. Rows of two
runs are not: each side is drawn separately (`stats.draws`), and the interval includes
the variance between processes on both sides. It cannot include other changes between
two runs; thresholds, and eager as a control, account for those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from torchproof.records import Measurement, Ratio, stats

LEAST_MS, MOST_MS = 1e-12, 1e15  # range of a valid time

_Numbers = np.ndarray[Any, np.dtype[np.float64]]


def side_by_side(base: Measurement, other: Measurement) -> Ratio | None:
    """Returns the time of one row over that of another row of the same run."""
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
    """Returns why the times of a row are invalid; empty if they can be compared.

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


def of_speed(a: Measurement, b: Measurement) -> Ratio | None:
    """Returns the time per call of A over that of B, of two runs."""
    if a.median_ms is None or b.median_ms is None:
        return None
    value = math.log(a.median_ms) - math.log(b.median_ms)
    if min(len(a.rounds_ms), len(b.rounds_ms)) >= stats.FEWEST_ROUNDS:
        logs = [np.log([median(each) for each in row.rounds_ms]) for row in (a, b)]
        draw_a = partial(_drawn, logs[0], a, processes=1)
        draw_b = partial(_drawn, logs[1], b, processes=1)
        return _ratio(value, _apart(draw_a, draw_b, _key(a), _key(b)))
    if not (a.low_ms and a.high_ms and b.low_ms and b.high_ms):
        return stats.ratio_of(value)
    low = math.log(a.low_ms) - math.log(b.high_ms)
    return stats.ratio_of(value, low, math.log(a.high_ms) - math.log(b.low_ms))


def of_gain(
    a: tuple[Measurement, Measurement], b: tuple[Measurement, Measurement]
) -> Ratio | None:
    """Returns B's gain over eager relative to A's; takes (eager, row) of each run.

    Within a run, eager and the row are sampled side by side, so drift of the machine
    does not affect the gain of a round.
    """
    before, after = a[1], b[1]
    if not before.vs_eager or not after.vs_eager:
        return None
    value = math.log(after.vs_eager) - math.log(before.vs_eager)
    old, new = _log_gains(*a), _log_gains(*b)
    if min(len(old), len(new)) >= stats.FEWEST_ROUNDS:
        draw_a = partial(_drawn, old, before, processes=2)
        draw_b = partial(_drawn, new, after, processes=2)
        return _ratio(value, -_apart(draw_a, draw_b, _key(*a[::-1]), _key(*b[::-1])))
    if not (before.vs_eager_low and before.vs_eager_high):
        return stats.ratio_of(value)
    if not (after.vs_eager_low and after.vs_eager_high):
        return stats.ratio_of(value)
    low = math.log(after.vs_eager_low) - math.log(before.vs_eager_high)
    high = math.log(after.vs_eager_high) - math.log(before.vs_eager_low)
    return stats.ratio_of(value, low, high)


def of_tail(a: Measurement, b: Measurement) -> Ratio | None:
    """Returns the 95th percentile of A over that of B."""
    if a.p95_ms is None or b.p95_ms is None:
        return None
    value = math.log(a.p95_ms) - math.log(b.p95_ms)
    if min(len(_tail_rounds(a)), len(_tail_rounds(b))) < stats.FEWEST_ROUNDS:
        return stats.ratio_of(value)
    draw_a, draw_b = _tail_draws(a), _tail_draws(b)
    return _ratio(value, _apart(draw_a, draw_b, _key(a), _key(b)))


def tails_differ(a: Measurement, b: Measurement) -> str:
    """Why the 95th percentiles of two rows are not of the same samples, else empty."""
    if bool(a.tail_rounds_ms) == bool(b.tail_rounds_ms):
        return ""
    name = "B" if a.tail_rounds_ms else "A"
    return f"the tail of {name} leaves out interrupted samples: measure it again"


def _tail_draws(row: Measurement) -> Callable[..., _Numbers]:
    rounds = _tail_rounds(row)
    return partial(stats.tail_draws, rounds, row.repeats, _variation(row))


def _tail_rounds(row: Measurement) -> Sequence[Sequence[float]]:
    """All samples by round; those of an older run leave out interrupted ones."""
    return row.tail_rounds_ms or row.rounds_ms


def _log_gains(eager: Measurement, row: Measurement) -> _Numbers:
    pairs = zip(eager.rounds_ms, row.rounds_ms, strict=False)
    return np.array([math.log(median(e)) - math.log(median(r)) for e, r in pairs])


def _drawn(logs: _Numbers, row: Measurement, *, processes: int, seed: int) -> _Numbers:
    """Draws the mean over repeats, with other rounds and other processes."""
    parts = stats.parts_of(logs, row.repeats)
    return stats.draws(parts, math.sqrt(processes) * _variation(row), seed=seed)


def _variation(row: Measurement) -> float:
    """How much processes differ; that of a CPU if one process could not show it."""
    unknown = row.luck is None or (row.luck == 0 and (row.processes or 1) < 2)
    return stats.SAME_LAYOUT_VARIATION if unknown or row.luck is None else row.luck


def _key(*rows: Measurement) -> tuple[Any, ...]:
    """Returns a key that orders two sides by their content."""
    return tuple((r.median_ms, r.rounds_ms, r.repeats, _variation(r)) for r in rows)


def _apart(
    draw_a: Callable[..., _Numbers],
    draw_b: Callable[..., _Numbers],
    key_a: tuple[Any, ...],
    key_b: tuple[Any, ...],
) -> _Numbers:
    """Returns draws of A minus draws of B, exactly negated if A and B are swapped.

    The content of a side decides its seed, not whether it is A or B.
    """
    if key_a > key_b:
        return -_apart(draw_b, draw_a, key_b, key_a)
    drawn = draw_a(seed=0) - draw_b(seed=1)
    return np.concatenate([drawn, -drawn]) if key_a == key_b else drawn


def _ratio(value: float, drawn: _Numbers) -> Ratio:
    low, high = stats.interval(drawn)
    return stats.ratio_of(value, min(low, value), max(high, value))
