"""Compares the same row of two runs, metric by metric.

A ratio above 1 means that B is better. A metric is a regression if B is worse by the
threshold and, where there are enough samples for an interval, the interval excludes 1.
`KINDS` is the table of metrics.

Strategies of one run are sampled side by side, so their rounds are paired. Rows of two
runs are not: the interval of their ratio follows from the intervals of both, with the
variation between processes on either side (the method of variance estimates recovery).
It cannot include other changes between two runs; thresholds, and eager as a control,
account for those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from statistics import median
from typing import Any

import numpy as np

from torchproof.records import Measurement, Ratio, UserError, shapes, stats

EAGER = "eager"
_LEAST, _MOST = 1e-12, 1e15  # a saved time beyond them was not measured
COUNT = "count"  # the unit of numbers of events
_COUNTED = {"graph_breaks": "breaks", "recompiles": "recompiles"}


class Change(StrEnum):
    """Whether a metric of B differs from that of A."""

    NOT_JUDGED = "not judged"
    NOT_SIGNIFICANT = "not significant"
    SAME = "same"
    SIGNIFICANT = "significant"


@dataclass(frozen=True)
class Kind:
    """One metric, and how its verdict is reached."""

    unit: str
    threshold: str = ""  # a field of `Thresholds`
    words: tuple[str, str] = ("faster", "slower")
    more_is_better: bool = False
    least: float = 0.0  # smaller differences are chance, in its unit
    control: str = ""  # eager's metric: the change must exceed that of eager
    needed: bool = False  # without an interval, the row is not compared


KINDS = {
    "speed": Kind("ms", "speed", needed=True),
    "vs eager": Kind("x", "speed", ("more", "less"), more_is_better=True),
    "tail": Kind("ms", "tail", control="tail"),
    "memory": Kind("bytes", "memory", ("less", "more")),
    # Smaller differences of first calls come from imports, not from compilation.
    "compile": Kind("s", "compile", least=1.0, control="speed"),
    "breaks": Kind(COUNT),
    "recompiles": Kind(COUNT),
    # Of load tests.
    "p50": Kind("ms", "speed", control="p50", needed=True),
    "p99": Kind("ms", "tail", control="p99"),
    "goodput": Kind("per_s", "speed", ("more", "less"), more_is_better=True),
    "first answer": Kind("s", "compile", least=1.0),
    "failed": Kind(COUNT),
}


@dataclass(frozen=True)
class Thresholds:
    """The smallest difference that matters, in percent."""

    speed: float = 5.0
    memory: float = 5.0
    tail: float = 10.0
    compile: float = 20.0

    @classmethod
    def parse(cls, text: str) -> Thresholds:
        """Parses `speed=5,memory=10`; other metrics keep their defaults."""
        names = [item.name for item in fields(cls)]
        percents: dict[str, float] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (part.strip() for part in item.partition("="))
            if name not in names:
                raise UserError(
                    f"--threshold: no metric {name!r}, choose from {', '.join(names)}"
                )
            try:
                percents[name] = float(value)
            except ValueError:
                percents[name] = -1.0
            if not 0 <= percents[name] < 1000:
                raise UserError(f"--threshold: {item!r} is not {name}=PERCENT")
        return cls(**percents)

    def of(self, kind: Kind) -> float:
        percent: float = getattr(self, kind.threshold)
        return percent


@dataclass(frozen=True)
class Metric:
    """The values of A and B, their ratio (above 1: B is better), and the verdict."""

    derived = ("verdict",)

    name: str
    a: float | None
    b: float | None
    unit: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    change: Change = Change.NOT_JUDGED
    words: str = ""  # of a significant change: `1.18x faster`
    regression: bool = False
    why: str = ""

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def significant(self) -> bool:
        return self.change is Change.SIGNIFICANT

    @property
    def verdict(self) -> str:
        return self.words or self.change

    @property
    def log(self) -> float:
        """The logarithm of A over B; exactly negated if A and B are swapped."""
        assert self.a and self.b
        return math.log(self.a) - math.log(self.b)

    @property
    def improvement(self) -> bool:
        """Whether B is better; a gain over eager is not enough, eager may be slower."""
        if self.unit == COUNT:
            return self.a is not None and self.b is not None and self.b < self.a
        counted = self.name != "vs eager" and not self.why
        return counted and self.significant and (self.ratio or 0) > 1

    def insignificant(self, why: str) -> Metric:
        return self.without_verdict(Change.NOT_SIGNIFICANT, why)

    def without_verdict(self, change: Change, why: str = "") -> Metric:
        return replace(self, change=change, words="", regression=False, why=why)

    def beyond(self, eager: Metric, limits: Thresholds) -> Metric:
        """Drops a change that is no larger than that of eager."""
        if not (self.significant and eager.significant):
            return self
        difference = self.log - eager.log
        difference = difference if self.log > 0 else -difference
        if difference >= math.log1p(limits.of(self.kind) / 100):
            return self
        return self.insignificant(f"{self.verdict}, but eager is {eager.verdict}")


@dataclass(frozen=True)
class Row:
    """One strategy in both runs. `broken` says why the row of B fails."""

    name: str
    metrics: tuple[Metric, ...] = ()
    broken: str = ""
    note: str = ""
    control: bool = False  # eager beside compiled rows; it gets no verdict
    unverified: bool = False  # the outputs of a run were not compared with eager's

    def without_regressions(self, **changes: Any) -> Row:
        plain = tuple(replace(metric, regression=False) for metric in self.metrics)
        return replace(self, metrics=plain, **changes)

    def beyond(self, eager: Row, limits: Thresholds) -> Row:
        """Drops changes that the control shares."""
        known = {metric.name: metric for metric in eager.metrics}
        judged = {
            m.name: m.beyond(known[m.kind.control], limits)
            if m.kind.control in known
            else m
            for m in self.metrics
        }
        if "vs eager" in judged and known["speed"].significant:
            judged["speed"] = _agreed(
                judged["speed"], judged["vs eager"], known["speed"]
            )
        return replace(self, metrics=tuple(judged.values()))


def _agreed(speed: Metric, gain: Metric, eager: Metric) -> Metric:
    """Keeps a verdict on speed only if the gain over eager agrees with it."""
    if not speed.significant:
        return speed
    assert speed.ratio and gain.ratio
    if not gain.significant or (speed.ratio > 1) != (gain.ratio > 1):
        return speed.insignificant(f"{speed.verdict}, but eager is {eager.verdict}")
    if speed.why or not gain.why:
        return speed
    why = f"its gain over eager changed less: {gain.verdict}"
    return replace(speed, regression=False, why=why)


# -- verdicts --------------------------------------------------------------------------

Bounds = tuple[float | None, float | None]


def metric(name: str, a: float | None, b: float | None, why: str = "") -> Metric:
    """A metric without a verdict, and `why` it has none."""
    return Metric(name, a, b, KINDS[name].unit, why=why)


def judged(found: Metric, bounds: Bounds, limits: Thresholds, few: str = "") -> Metric:
    """The verdict for the bounds of a ratio; `few` says why a bound is not known."""
    low, high = bounds
    assert found.a and found.b
    above, below = (
        (found.b, found.a) if found.kind.more_is_better else (found.a, found.b)
    )
    found = replace(found, ratio=above / below, low=low, high=high)
    if (high is not None and high < 1) or (low is not None and low > 1):
        return _by_threshold(found, limits, exact=True)
    few = few or "too few samples for an interval"
    return found.insignificant(few if low is None or high is None else "")


def single(name: str, a: float | None, b: float | None, limits: Thresholds) -> Metric:
    """Compares single measurements: no interval, so the threshold alone decides."""
    found = metric(name, a, b)
    if not (a and b and 0 < a < math.inf and 0 < b < math.inf):
        return replace(found, why="not measured in both")
    found, least = replace(found, ratio=a / b), found.kind.least
    if abs(a - b) < least:
        return found.insignificant(f"less than {least:g} {found.unit} apart")
    if a == b:
        return replace(found, change=Change.SAME)
    return _by_threshold(found, limits, exact=False)


def _by_threshold(found: Metric, limits: Thresholds, *, exact: bool) -> Metric:
    """The verdict of a difference that is not chance; an `exact` one has its words.

    Divides the larger by the smaller value, so that swapping A and B is neutral.
    """
    assert found.a and found.b and found.ratio
    percent = limits.of(found.kind)
    small = max(found.a, found.b) / min(found.a, found.b) < 1 + percent / 100
    why = f"within the threshold of {percent:g} percent" if small else ""
    if small and not exact:
        return found.insignificant(why)
    return replace(
        found,
        change=Change.SIGNIFICANT,
        words=ratio_text(found.ratio, *found.kind.words),
        regression=found.ratio < 1 and not small,
        why=why,
    )


def count(name: str, a: int | None, b: int | None) -> Metric:
    """Compares numbers of events; any increase is a regression."""
    found = Metric(name, a, b, COUNT)
    if a is None or b is None:
        return replace(found, why="not counted in both")
    if a == b:
        return replace(found, change=Change.SAME)
    words = f"{abs(b - a)} {'more' if b > a else 'fewer'}"
    return replace(found, change=Change.SIGNIFICANT, words=words, regression=b > a)


def counts(
    a: Mapping[str, int | None] | shapes.Counts,
    b: Mapping[str, int | None] | shapes.Counts,
) -> Iterator[Metric]:
    for key, name in _COUNTED.items():
        old, new = a.get(key), b.get(key)
        assert isinstance(old, int | None) and isinstance(new, int | None)
        yield count(name, old, new)


def ratio_text(ratio: float, better: str = "faster", worse: str = "slower") -> str:
    """A text such as `1.18x faster` or `1.05x slower`."""
    return f"{ratio:.2f}x {better}" if ratio >= 1 else f"{1 / ratio:.2f}x {worse}"


# -- the metrics of a measurement ------------------------------------------------------


def of_rows(a: Measurement, b: Measurement, limits: Thresholds) -> Iterator[Metric]:
    """Speed, gain over eager, tail, memory, compile time and counts."""
    yield speed(a, b, limits)
    compiled = EAGER not in (a.strategy, b.strategy)
    if compiled and a.strategy == b.strategy and a.vs_eager and b.vs_eager:
        gain = _compared("vs eager", a, b, limits)
        yield replace(gain, regression=False)  # eager alone may have changed
    yield tail(a, b, limits)
    yield single("memory", a.peak_bytes, b.peak_bytes, limits)
    if compiled:
        yield _compile(a, b, limits)
        if a.strategy == b.strategy:
            yield from counts(a.counts or {}, b.counts or {})


def speed(a: Measurement, b: Measurement, limits: Thresholds) -> Metric:
    return _compared("speed", a, b, limits)


def tail(a: Measurement, b: Measurement, limits: Thresholds) -> Metric:
    """The 95th percentile; both must be of all samples, or of uninterrupted ones."""
    if bool(a.tail_rounds_ms) != bool(b.tail_rounds_ms):
        name = "B" if a.tail_rounds_ms else "A"
        why = f"the tail of {name} leaves out interrupted samples: measure it again"
        return metric("tail", a.p95_ms, b.p95_ms, why)
    return _compared("tail", a, b, limits)


def _compile(a: Measurement, b: Measurement, limits: Thresholds) -> Metric:
    """Compares the first calls of two cold starts."""
    labels = [(row.start or {}).get("label") for row in (a, b)]
    if labels == ["cold", "cold"]:
        return single("compile", a.first_call_s, b.first_call_s, limits)
    starts = " and ".join(label or "not known" for label in labels)
    why = f"the starts are {starts}, and not both cold"
    return metric("compile", a.first_call_s, b.first_call_s, why)


def _compared(name: str, a: Measurement, b: Measurement, limits: Thresholds) -> Metric:
    """A metric whose interval follows from those of A and B."""
    value_of, interval_of = _INTERVALS[name]
    values: list[float | None] = [getattr(row, value_of) for row in (a, b)]
    found = metric(name, values[0], values[1])
    if not (found.a and found.b and all(_LEAST <= v <= _MOST for v in values if v)):
        return replace(found, why="not measured in both")
    first, second = interval_of(a), interval_of(b)
    if first is None or second is None:
        return judged(found, (None, None), limits)
    (a_low, a_high), (b_low, b_high) = first, second
    a_log, b_log = math.log(found.a), math.log(found.b)
    # A sum of two squares does not depend on their order: swapping A and B negates all.
    low = found.log - math.sqrt((a_log - a_low) ** 2 + (b_high - b_log) ** 2)
    high = found.log + math.sqrt((a_high - a_log) ** 2 + (b_log - b_low) ** 2)
    if found.kind.more_is_better:
        low, high = -high, -low
    return judged(found, (stats.exp(low), stats.exp(high)), limits)


# The logarithms of a value's 95 percent interval, from the row; None if not known.
_Interval = tuple[float, float] | None


def _median(row: Measurement) -> _Interval:
    """From the rounds; with too few of them, the interval that the row states."""
    if len(row.rounds_ms) < stats.FEWEST_ROUNDS:
        return _logs(row.low_ms, row.high_ms)
    logs = np.log([median(each) for each in row.rounds_ms])
    drawn = stats.draws(stats.parts_of(logs, row.repeats), _variation(row))
    return _around(row.median_ms, drawn)


def _gain(row: Measurement) -> _Interval:
    return _logs(row.vs_eager_low, row.vs_eager_high)


def _p95(row: Measurement) -> _Interval:
    """Of all samples; those of an older run leave out interrupted ones."""
    rounds = row.tail_rounds_ms or row.rounds_ms
    if len(rounds) < stats.FEWEST_ROUNDS:
        return None
    return _around(row.p95_ms, stats.tail_draws(rounds, row.repeats, _variation(row)))


# The field with the value of a metric, and what gives its interval.
_INTERVALS: dict[str, tuple[str, Callable[[Measurement], _Interval]]] = {
    "speed": ("median_ms", _median),
    "vs eager": ("vs_eager", _gain),
    "tail": ("p95_ms", _p95),
}


def _around(value: float | None, drawn: Any) -> _Interval:
    """Half of the width of the draws on either side of a value."""
    low, high = stats.interval(drawn)
    middle, half = math.log(value or 1.0), (high - low) / 2
    return middle - half, middle + half


def _logs(low: float | None, high: float | None) -> _Interval:
    return (math.log(low), math.log(high)) if low and high else None


def _variation(row: Measurement) -> float:
    """How much processes differ; that of a CPU if one process could not show it."""
    if row.luck is None or (row.luck == 0 and (row.processes or 1) < 2):
        return stats.SAME_LAYOUT_VARIATION
    return row.luck


def side_by_side(base: Measurement, other: Measurement) -> Ratio | None:
    """The time of one row over that of another row of the same run."""
    rounds = list(zip(base.rounds_ms, other.rounds_ms, strict=False))
    if not rounds:
        return None
    repeats = base.repeats if base.repeats == other.repeats else ()
    first, second = zip(*rounds, strict=True)
    variation = max(_variation(base), _variation(other))
    whole = sum(repeats) == len(rounds)
    return stats.compare(
        first, second, repeats=repeats if whole else (), variation=variation
    )
