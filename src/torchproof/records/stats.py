"""Statistics of timings that are taken in rounds, which interleave the strategies.

Takes rounds: lists of milliseconds per call. Returns a summary of one strategy, the
ratio of two strategies, and whether the warm-up or the sampling is complete.

Three effects distort a comparison of timings, and the sampling handles each:
- The machine gets slower or faster. Strategies are compared only within a round, by the
  ratio of their medians, and take turns in going first.
- Other programs interrupt. Samples in which the process lost its core are dropped;
  medians within a round and over the rounds ignore other outliers.
- Two processes with the same code differ by their memory layout, by more than the
  sampling error, however long they run. So the strategies of a repeat share one layout
  (see `torchproof.process.aslr`), and each repeat uses new processes with another one.
  From `ENOUGH_PROCESSES` repeats on, an interval is a t interval over processes. With
  fewer, it is bootstrapped over the rounds, and a ratio includes the variation between
  processes that is known of the device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

REPEATS = 2  # processes per strategy, one after the other
ENOUGH_PROCESSES = 5  # for an interval over processes
ROUNDS = 20  # at most per repeat; even, so that each strategy goes first equally often
LEAST_ROUNDS = 8  # per repeat, before it may end early
ROUND_MS = 60.0  # duration of a round per strategy
ROUND_SAMPLES = 20  # samples that a round keeps
_CLEAN_SAMPLES = 3  # a round lasts up to _STRETCH times as long to get that many
_STRETCH = 4

# Standard deviation of the speed of processes with the same code on a CPU. Measured for
# one layout: 0.0004 to 0.008. Strategies run different code, which the same layout can
# affect differently: hence more. With random layouts, over eight processes each: a hash
# 0.015, torch modules 0.006 to 0.028, small operations 0.12. Other devices have no
# such constant: `process_variation` takes it from the repeats of the same run.
SAME_LAYOUT_VARIATION = 0.02
RANDOM_LAYOUT_VARIATION = 0.05
PRECISION = 0.015  # of a repeat's ratio; the variation between processes is larger

WARM_UP_S = 20.0  # sampling starts then even if the times are not steady

FEWEST_ROUNDS = 4  # fewer give no interval
LONGER = "raise --seconds"  # how to get more samples
_RESAMPLES = 1000
_FARTHEST = 300.0  # the largest logarithm of a ratio
# 97.5 percent quantiles of Student's t distribution, from 4 degrees of freedom on.
_T: tuple[float, ...] = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
_T += (2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)
_LEAST_WARMUP = 6  # calls
_LEAST_WARMUP_MS = 100.0
_WINDOW = 200
_STEADY = 0.03

_Floats = np.ndarray[Any, np.dtype[np.float64]]
Rounds = Sequence[Sequence[float]]
RatioVerdict = Literal["faster", "slower", "not significant"]


@dataclass(frozen=True)
class Spread:
    """The times of a strategy; `low`, `high`: 95 percent interval of the median."""

    median: float
    low: float
    high: float
    count: int
    outliers: int
    p95: float
    advice: tuple[str, ...] = ()  # why it is unreliable, and what to try

    @property
    def stable(self) -> bool:
        return not self.advice


@dataclass(frozen=True)
class Ratio:
    """Time of a base over time of another strategy: above 1 the other is faster.

    `low` and `high`: 95 percent interval; None with too few rounds.
    """

    value: float
    low: float | None
    high: float | None
    verdict: RatioVerdict
    advice: tuple[str, ...] = ()
    of_medians: float | None = None  # the ratio of the two medians


@dataclass(frozen=True)
class BreakEven:
    """The steps after which compilation pays off; None if it never does."""

    steps: int | None
    text: str


# -- one strategy ----------------------------------------------------------------------


def round_is_over(elapsed_ms: float, clean: int, round_ms: float = ROUND_MS) -> bool:
    """Whether a round with this many uninterrupted samples may end."""
    stretch = 1 if clean >= _CLEAN_SAMPLES else _STRETCH
    return elapsed_ms >= round_ms * stretch


def rounds_per_repeat(repeats: int) -> int:
    """At most so many: the rounds of all repeats together last `--seconds`."""
    return min(ROUNDS, max(LEAST_ROUNDS, REPEATS * ROUNDS // repeats))


def uninterrupted(
    times_ms: Sequence[float], interrupted: Sequence[bool]
) -> list[float]:
    """The samples that a round keeps: uninterrupted, evenly spread, not too many.

    `interrupted` says for each sample whether the process lost its core, as
    `resource.getrusage` counts. Such samples include the time of another program: a
    step of 5 ms then takes 9 or 13. They are kept only if there are no others.
    """
    pairs = zip(times_ms, interrupted, strict=True)
    return thinned([t for t, spoiled in pairs if not spoiled] or times_ms)


def thinned(times_ms: Sequence[float]) -> list[float]:
    """Returns at most `ROUND_SAMPLES` of the times of a round, evenly spread."""
    if len(times_ms) <= ROUND_SAMPLES:
        return list(times_ms)
    chosen = np.linspace(0, len(times_ms) - 1, ROUND_SAMPLES).round().astype(int)
    return [times_ms[index] for index in chosen]


def tail_of(times_ms: Sequence[float]) -> list[float]:
    """At most `ROUND_SAMPLES` values with the same distribution as all of a round's.

    They are quantiles at 2.5, 7.5, ... 97.5 percent. Interrupted samples count here: a
    user waits for them too.
    """
    if len(times_ms) <= ROUND_SAMPLES:
        return sorted(times_ms)
    shares = (np.arange(ROUND_SAMPLES) + 0.5) / ROUND_SAMPLES
    values: list[float] = np.quantile(times_ms, shares).tolist()
    return values


def interval_over(repeats: Sequence[int]) -> Literal["processes", "rounds"]:
    """What an interval covers, given the number of rounds of each process."""
    return "processes" if len(repeats) >= ENOUGH_PROCESSES else "rounds"


def summarise(
    rounds: Rounds,
    *,
    repeats: Sequence[int] = (),
    tail: Rounds = (),
    interrupted: float = 0.0,
    longer: str = LONGER,
) -> Spread:
    """Median with interval, 95th percentile and outliers, and advice if unreliable.

    The median is the geometric mean of the medians of the processes. `repeats` has the
    number of rounds of each process, `tail` has all samples of each round (`tail_of`),
    `interrupted` is the share of samples that were dropped as interrupted.
    """
    assert rounds and all(rounds), "a strategy without samples has no summary"
    medians, pooled = _medians(rounds), np.concatenate([np.array(r) for r in rounds])
    parts = parts_of(np.log(medians), repeats)
    median = _median_of(medians, parts)
    if len(medians) >= FEWEST_ROUNDS:
        low, high = np.exp(interval(draws(parts)))
    else:
        low, high = pooled.min(), pooled.max()
    spread = Spread(
        median=median,
        low=min(float(low), median),
        high=max(float(high), median),
        count=len(pooled),
        outliers=_count_outliers(rounds, pooled),
        p95=p95(tail or rounds),
    )
    advice = _advice(spread, medians, pooled, longer)
    if interrupted > 0.5 and not advice:
        advice = (f"{interrupted:.0%} of the steps interrupted: close other programs",)
    return replace(spread, advice=advice)


def p95(rounds: Rounds) -> float:
    return float(np.percentile(np.concatenate([np.array(r) for r in rounds]), 95))


def _median_of(medians: _Floats, parts: Sequence[_Floats]) -> float:
    if len(parts) == 1:
        return float(np.median(medians))
    return math.exp(float(_centres(parts).mean()))


def _count_outliers(rounds: Rounds, pooled: _Floats) -> int:
    """Counts samples more than three interquartile ranges from the middle half."""
    if min(map(len, rounds)) >= 5:
        level = np.concatenate([np.array(r) / np.median(r) for r in rounds])
    else:
        level = pooled / np.median(pooled)
    first, third = np.percentile(level, (25, 75))
    reach = 3 * max(third - first, 0.01)
    return int(np.sum((level < first - reach) | (level > third + reach)))


def _advice(
    spread: Spread, medians: _Floats, pooled: _Floats, longer: str
) -> tuple[str, ...]:
    """Why the numbers are unreliable, the most specific reason first."""
    advice = []
    if spread.count < 20 or len(medians) < FEWEST_ROUNDS:
        advice.append(f"only {spread.count} samples: {longer}")
    drift, groups = _drift(medians), _two_groups(pooled)
    first, third = np.percentile(pooled, (25, 75))
    middle = (third - first) / spread.median
    if abs(drift) > 0.1:
        way = "rose" if drift > 0 else "fell"
        advice.append(
            f"times {way} by {abs(drift):.0%} during sampling: let the machine cool"
            " down, pin its clocks, close other programs"
        )
    elif groups is not None:
        advice.append(
            f"two speeds, near {groups[0]:.3g} and {groups[1]:.3g} ms: close other"
            " programs, or time different calls separately"
        )
    elif middle > 0.1:
        advice.append(
            f"half of the samples spread over {middle:.0%}: close other programs"
        )
    elif spread.outliers > 0.05 * spread.count:
        share = spread.outliers / spread.count
        advice.append(f"{share:.0%} of the samples are outliers: close other programs")
    if not advice and spread.high - spread.low > 0.1 * spread.median:
        advice.append(f"the median is uncertain by more than 10%: {longer}")
    return tuple(advice)


def _drift(medians: _Floats) -> float:
    """The relative slowdown from the first to the last rounds; 0 without a trend."""
    if len(medians) < 6:
        return 0.0
    order = np.arange(len(medians))
    ranks = medians.argsort().argsort()
    if abs(np.corrcoef(order, ranks)[0, 1]) < 0.7:
        return 0.0
    third = len(medians) // 3
    return float(np.median(medians[-third:]) / np.median(medians[:third]) - 1)


def _two_groups(pooled: _Floats) -> tuple[float, float] | None:
    """The centres of two groups that explain nearly all variation, if they exist."""
    values = np.sort(np.log(pooled))
    values = values[: max(1, round(0.98 * len(values)))]
    count = len(values)
    if count < 20:
        return None
    split = np.arange(count // 5, count - count // 5)
    sums = np.cumsum(values)
    below = sums[split - 1] / split
    above = (sums[-1] - sums[split - 1]) / (count - split)
    between = split * (count - split) * (above - below) ** 2 / count
    best = int(between.argmax())
    # An even spread over one range gives 0.75, a normal distribution 0.64.
    if between[best] < 0.9 * max(float(np.sum((values - values.mean()) ** 2)), 1e-12):
        return None
    centres = math.exp(below[best]), math.exp(above[best])
    return centres if centres[1] > 1.1 * centres[0] else None


# -- two strategies --------------------------------------------------------------------


def compare(
    base: Rounds,
    other: Rounds,
    *,
    repeats: Sequence[int] = (),
    variation: float = SAME_LAYOUT_VARIATION,
) -> Ratio:
    """Returns the base's time over the other's, from paired rounds.

    `repeats` has the number of rounds of each repeat; by default there is one
    repeat. `variation` is that between processes; enough repeats show it themselves.

    The ratio of the two medians is another estimate. They agree unless the speed of the
    machine changed between rounds; the interval covers both.
    """
    pairs = list(zip(base, other, strict=True))
    assert pairs and sum(repeats or [len(pairs)]) == len(pairs)
    first, second = np.log(_medians(base)), np.log(_medians(other))
    parts = parts_of(first - second, repeats)
    centres = _centres(parts)
    medians = [_centres(parts_of(each, repeats)).mean() for each in (first, second)]
    of_medians = float(medians[0] - medians[1])
    if len(pairs) < FEWEST_ROUNDS:
        return replace(ratio_of(centres.mean()), of_medians=exp(of_medians))
    low, high = interval(draws(parts, math.sqrt(2) * variation))
    advice = _disagreement(centres)
    if not low <= of_medians <= high:
        advice += (
            f"the ratio of the medians is {exp(of_medians):.2f}x: the speed changed"
            " between rounds, so the interval covers both: close other programs",
        )
        low, high = min(low, of_medians), max(high, of_medians)
    ratio = ratio_of(centres.mean(), low, high)
    return replace(ratio, advice=advice, of_medians=exp(of_medians))


def process_variation(
    base: Rounds, others: Sequence[Rounds], repeats: Sequence[int]
) -> float:
    """How much processes with the same code differ, from the repeats of one run.

    The relative standard deviation of one process: of the ratios to the base, which
    ran side by side, over all strategies. 0 if a single repeat cannot show it.
    """
    if len(repeats) < 2:
        return 0.0
    first = np.log(_medians(base))
    logs = [first - np.log(_medians(other)) for other in others]
    centres = [_centres(parts_of(each, repeats)) for each in logs]
    variances = [float(each.var(ddof=1)) / 2 for each in centres]
    if not variances:
        variances = [float(_centres(parts_of(first, repeats)).var(ddof=1))]
    return math.sqrt(sum(variances) / len(variances))


def parts_of(values: _Floats, repeats: Sequence[int]) -> list[_Floats]:
    """The values of each repeat; all of them if the repeats are not known."""
    known = sum(repeats) == len(values) and all(count > 0 for count in repeats)
    return np.split(values, np.cumsum(repeats)[:-1]) if known and repeats else [values]


def _centres(parts: Sequence[_Floats]) -> _Floats:
    return np.array([np.median(part) for part in parts])


def interval(drawn: _Floats) -> tuple[float, float]:
    """The central 95 percent of the draws.

    Both ends use the same percentile, one of them on the negated draws. So negated
    draws, as of the inverse ratio, give exactly the negated interval.
    """
    return -float(np.percentile(-drawn, 97.5)), float(np.percentile(drawn, 97.5))


def ratio_of(
    value: float, low: float | None = None, high: float | None = None
) -> Ratio:
    """The ratio and its verdict, from logarithms; without an interval, it has none."""
    if low is None or high is None:
        return Ratio(exp(value), None, None, "not significant")
    verdict: RatioVerdict = "not significant"
    if low > 0:
        verdict = "faster"
    elif high < 0:
        verdict = "slower"
    return Ratio(exp(value), exp(low), exp(high), verdict)


def _disagreement(centres: _Floats) -> tuple[str, ...]:
    apart = math.exp(float(np.ptp(centres))) - 1
    if apart < 0.1:
        return ()
    return (f"the ratio differs by {apart:.0%} between repeats: raise --repeats",)


def draws(parts: Sequence[_Floats], variation: float = 0.0) -> _Floats:
    """Draws of the mean over repeats of the median over rounds, with a fixed seed.

    Enough repeats vary as other processes would: the draws follow a t distribution
    around their mean. Fewer are bootstrapped over their rounds, and processes vary by
    at least `variation`. Negated values give exactly negated draws.
    """
    random = np.random.default_rng(0)
    count, centres = len(parts), _centres(parts)
    apart = float(centres.std(ddof=1)) if count > 1 else 0.0
    if count >= ENOUGH_PROCESSES:
        middle: _Floats = np.full(_RESAMPLES, centres.mean())
        noise = _t_noise(count - 1, random)
    else:
        middle = np.mean([_drawn_medians(part, random) for part in parts], axis=0)
        noise, apart = random.standard_normal(_RESAMPLES), max(variation, apart)
    noise = noise * apart / math.sqrt(count)
    return np.concatenate([middle + noise, middle - noise])


def _t_noise(degrees: int, random: np.random.Generator) -> _Floats:
    """Draws of Student's t; 95 percent of them are within its exact quantiles."""
    drawn = random.standard_t(degrees, _RESAMPLES)
    exact = _T[min(degrees, len(_T) + 3) - 4]
    noise: _Floats = drawn * exact / np.percentile(np.abs(drawn), 95)
    return noise


def _drawn_medians(values: _Floats, random: np.random.Generator) -> _Floats:
    """Bootstrap draws of a median.

    A few rounds vary less around their own median than around the true one; the
    widening corrects for that.
    """
    count = len(values)
    chosen = random.integers(count, size=(_RESAMPLES, count))
    centre = np.median(values)
    widened = (np.median(values[chosen], axis=1) - centre) * count / max(1, count - 1)
    return centre + widened


def tail_draws(rounds: Rounds, repeats: Sequence[int], variation: float) -> _Floats:
    """Draws of the logarithm of the 95th percentile, bootstrapped over rounds.

    Processes vary by at least `variation`. A round that is drawn twice gets twice the
    weight, so one sort is enough.
    """
    random = np.random.default_rng(0)
    count = len(rounds)
    times = np.concatenate([np.array(each) for each in rounds])
    owner = np.repeat(np.arange(count), [len(each) for each in rounds])
    order = times.argsort()
    drawn = random.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    reached = drawn[:, owner[order]].cumsum(axis=1)
    at = (reached < 0.95 * reached[:, -1:]).sum(axis=1)
    parts = parts_of(np.arange(count, dtype=float), repeats)
    if len(parts) > 1:
        tails = [p95([rounds[int(n)] for n in part]) for part in parts]
        variation = max(variation, float(np.std(np.log(tails), ddof=1)))
    noise = variation * random.standard_normal(_RESAMPLES)
    found: _Floats = np.log(times[order][at]) + noise / math.sqrt(len(repeats) or 1)
    return found


def exp(value: float) -> float:
    """A ratio from its logarithm; a saved run may have a spread beyond all floats."""
    return math.exp(max(-_FARTHEST, min(value, _FARTHEST)))


def _medians(rounds: Rounds) -> _Floats:
    # Ten times as fast as numpy on short lists.
    return np.array([statistics.median(samples) for samples in rounds])


# -- when to start and to stop ---------------------------------------------------------


def steady(times_ms: Sequence[float]) -> bool:
    """Whether a warm-up is over, given the times of its calls so far.

    It is over when the last third agrees with the second third, up to noise. The first
    third, which includes the first call, is ignored. A call ten times as long as the
    rest, and long enough for a compilation, does not count as noise.
    """
    third = len(times_ms) // 3
    if len(times_ms) < _LEAST_WARMUP:
        return False
    if sum(times_ms[third:]) < _LEAST_WARMUP_MS and len(times_ms) < 3 * _WINDOW:
        return False
    third = min(third, _WINDOW)
    before = np.array(times_ms[-2 * third : -third])
    last = np.array(times_ms[-third:])
    centre = float(np.median(last))
    if last.max() > max(10 * centre, 50.0):
        return False
    error = math.hypot(_error_of_median(before), _error_of_median(last))
    gap = abs(float(np.median(before)) - centre)
    return gap <= max(_STEADY * centre, 2 * error)


def enough(rounds_by_strategy: Mapping[str, Rounds]) -> bool:
    """Whether a repeat may end early, because every ratio is precise enough.

    Only the precision of the ratios to the first strategy counts, not their values:
    stopping at the first visible difference would report differences that do not exist.
    """
    base, *others = map(_medians, rounds_by_strategy.values())
    if len(base) < LEAST_ROUNDS:
        return False
    if not others:
        return 2 * _error_of_median(np.log(base)) <= PRECISION
    return all(
        2 * _error_of_median(np.log(base / other)) <= PRECISION for other in others
    )


def _error_of_median(values: _Floats) -> float:
    """Returns the standard error, from the median absolute deviation."""
    deviation = float(np.median(np.abs(values - np.median(values))))
    return 1.253 * 1.483 * deviation / math.sqrt(len(values))


# -- break-even ------------------------------------------------------------------------


def break_even(
    first_call_s: float | None,
    eager_first_s: float | None,
    eager_ms: float | None,
    ratio: Ratio | None,
) -> BreakEven | None:
    """When compilation has paid for its first call; None if it is not known."""
    if first_call_s is None or eager_first_s is None or not eager_ms or ratio is None:
        return None
    if ratio.verdict == "slower":
        return BreakEven(None, "never")
    if ratio.verdict == "not significant":
        return BreakEven(None, "no gain shown")
    gain_s = eager_ms * (1 - 1 / ratio.value) / 1e3
    steps = 1 + max(0, math.ceil((first_call_s - eager_first_s) / gain_s))
    return BreakEven(steps, f"after {steps} step{'s' if steps > 1 else ''}")
