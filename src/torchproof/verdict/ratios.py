"""Ratios of two rows, with an interval for each: above 1, the second row is better.

Arms of one run were sampled side by side, so their rounds are paired. Two runs were
not: each side is then resampled by itself, and the interval contains the luck of the
processes on both sides. What else changes between two runs no interval can contain;
that is what thresholds, and eager as a control, are for.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import numpy as np

from torchproof import samples
from torchproof.records import Measurement
from torchproof.samples import Ratio, RatioVerdict

LEAST_ROUNDS = 5  # fewer give a bootstrap too little to draw from
TAIL = 95
_RESAMPLES = 1000
_TAIL_RESAMPLES = 500

_Numbers = np.ndarray[Any, np.dtype[np.float64]]


def side_by_side(base: Measurement, other: Measurement) -> Ratio | None:
    """Time of one arm over time of another, of the same run."""
    rounds = list(zip(base.rounds_ms, other.rounds_ms, strict=False))
    if not rounds:
        return None
    sittings = base.sittings if base.sittings == other.sittings else ()
    first, second = zip(*rounds, strict=True)
    whole = sum(sittings) == len(rounds)
    return samples.compare(first, second, sittings=sittings if whole else ())


def of_speed(a: Measurement, b: Measurement) -> Ratio | None:
    """Time of A over time of B, per call, of two runs."""
    if not a.median_ms or not b.median_ms:
        return None
    value = a.median_ms / b.median_ms
    if min(len(a.rounds_ms), len(b.rounds_ms)) >= LEAST_ROUNDS:
        logs = [np.log([median(each) for each in row.rounds_ms]) for row in (a, b)]
        drawn = _drawn(logs[0], a, processes=1, seed=0)
        return _ratio(value, drawn - _drawn(logs[1], b, processes=1, seed=1))
    if not (a.low_ms and a.high_ms and b.low_ms and b.high_ms):
        return Ratio(value, None, None, "not significant")
    return _with_verdict(value, a.low_ms / b.high_ms, a.high_ms / b.low_ms)


def of_gain(
    a: tuple[Measurement, Measurement], b: tuple[Measurement, Measurement]
) -> Ratio | None:
    """How B's gain over eager compares with A's: (eager, row) of each run.

    Within a run eager and the row were sampled side by side, so the gain of a round is
    free of what the machine did meanwhile.
    """
    before, after = a[1], b[1]
    if not before.vs_eager or not after.vs_eager:
        return None
    value = after.vs_eager / before.vs_eager
    old, new = _log_gains(*a), _log_gains(*b)
    if min(len(old), len(new)) >= LEAST_ROUNDS:
        drawn = _drawn(new, after, processes=2, seed=1)
        return _ratio(value, drawn - _drawn(old, before, processes=2, seed=0))
    if not (before.vs_eager_low and before.vs_eager_high):
        return Ratio(value, None, None, "not significant")
    if not (after.vs_eager_low and after.vs_eager_high):
        return Ratio(value, None, None, "not significant")
    low = after.vs_eager_low / before.vs_eager_high
    return _with_verdict(value, low, after.vs_eager_high / before.vs_eager_low)


def of_tail(a: Measurement, b: Measurement) -> Ratio | None:
    """95th percentile of A over that of B."""
    if not a.p95_ms or not b.p95_ms:
        return None
    value = a.p95_ms / b.p95_ms
    if min(len(a.rounds_ms), len(b.rounds_ms)) < LEAST_ROUNDS:
        return Ratio(value, None, None, "not significant")
    return _ratio(value, _drawn_tails(a, seed=0) - _drawn_tails(b, seed=1))


def _log_gains(eager: Measurement, row: Measurement) -> _Numbers:
    pairs = zip(eager.rounds_ms, row.rounds_ms, strict=False)
    return np.array([math.log(median(e) / median(r)) for e, r in pairs])


def _drawn(logs: _Numbers, row: Measurement, *, processes: int, seed: int) -> _Numbers:
    """What the mean of the sittings might have been: other rounds, other processes."""
    chance, sittings = np.random.default_rng(seed), row.sittings
    whole = sum(sittings) == len(logs)
    parts = np.split(logs, np.cumsum(sittings)[:-1]) if whole else [logs]
    chosen = [chance.integers(len(p), size=(_RESAMPLES, len(p))) for p in parts]
    drawn = [np.median(p[c], axis=1) for p, c in zip(parts, chosen, strict=True)]
    found: _Numbers = np.mean(drawn, axis=0)
    luck = _luck(parts, math.sqrt(processes) * _of_one_process(row))
    return found + luck * chance.standard_normal(_RESAMPLES)


def _of_one_process(row: Measurement) -> float:
    return samples.LUCK if row.luck is None else row.luck


def _luck(parts: list[_Numbers], apart: float) -> float:
    """How far the mean of the sittings is off by; more where they show more."""
    if len(parts) > 1:
        centres = [np.median(part) for part in parts]
        apart = max(apart, float(np.std(centres, ddof=1)))
    return apart / math.sqrt(len(parts))


def _drawn_tails(row: Measurement, seed: int) -> _Numbers:
    """Tails of the samples of rounds drawn anew.

    A round drawn twice weighs twice, so the samples are sorted only once.
    """
    chance = np.random.default_rng(seed)
    count = len(row.rounds_ms)
    times = np.concatenate([np.array(each) for each in row.rounds_ms])
    owner = np.repeat(np.arange(count), [len(each) for each in row.rounds_ms])
    order = times.argsort()
    drawn = chance.multinomial(count, np.full(count, 1 / count), size=_TAIL_RESAMPLES)
    reached = drawn[:, owner[order]].cumsum(axis=1)
    at = (reached < TAIL / 100 * reached[:, -1:]).sum(axis=1)
    luck = _of_one_process(row) / math.sqrt(len(row.sittings) or 1)
    tails: _Numbers = np.log(times[order][at])
    return tails + luck * chance.standard_normal(_TAIL_RESAMPLES)


def _ratio(value: float, drawn: _Numbers) -> Ratio:
    low, high = np.exp(np.percentile(drawn, (2.5, 97.5)))
    return _with_verdict(value, min(float(low), value), max(float(high), value))


def _with_verdict(value: float, low: float, high: float) -> Ratio:
    verdict: RatioVerdict = "not significant"
    if low > 1:
        verdict = "faster"
    elif high < 1:
        verdict = "slower"
    return Ratio(value, low, high, verdict)
