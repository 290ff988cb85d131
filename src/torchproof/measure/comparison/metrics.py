"""Compares the same row of two runs, metric by metric.

A ratio above 1 means that B is better. A metric is a regression if B is worse by the
threshold and, where there are enough samples for an interval, the interval excludes 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from torchproof.measure.comparison import ratios
from torchproof.records import Measurement, Ratio, UserError

NOT_SIGNIFICANT = "not significant"
NOT_JUDGED = "not judged"
# Smaller differences of first calls come from imports and chance, not compilation.
LEAST_COMPILE_S = 1.0
COUNT = "count"  # the unit of numbers of events
COUNTS = {"graph_breaks": "breaks", "recompiles": "recompiles"}
_SPEED_WORDS = ("faster", "slower")


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


@dataclass(frozen=True)
class Metric:
    """The values of A and B, their ratio (above 1: B is better), and the verdict."""

    name: str
    a: float | None
    b: float | None
    unit: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = NOT_JUDGED
    regression: bool = False
    why: str = ""

    @property
    def significant(self) -> bool:
        return self.verdict not in (NOT_SIGNIFICANT, NOT_JUDGED, "same")

    @property
    def log(self) -> float:
        """The logarithm of the ratio; exactly negated if A and B are swapped."""
        assert self.a and self.b
        difference = math.log(self.a) - math.log(self.b)
        return -difference if self.name == "vs eager" else difference

    @property
    def improvement(self) -> bool:
        """Whether B is better; a gain over eager is not enough, eager may be slower."""
        if self.unit == COUNT:
            return self.a is not None and self.b is not None and self.b < self.a
        counted = self.name != "vs eager" and not self.why
        return counted and self.significant and (self.ratio or 0) > 1

    def insignificant(self, why: str) -> Metric:
        return replace(self, verdict=NOT_SIGNIFICANT, regression=False, why=why)


@dataclass(frozen=True)
class Row:
    """One strategy in both runs. `broken` says why the row of B fails."""

    name: str
    metrics: tuple[Metric, ...] = ()
    broken: str = ""
    note: str = ""
    control: bool = False  # eager beside compiled rows; it gets no verdict
    unverified: bool = False  # the outputs of a run were not compared with eager's

    def as_control(self) -> Row:
        plain = tuple(replace(metric, regression=False) for metric in self.metrics)
        return replace(self, metrics=plain, control=True)


# -- verdicts --------------------------------------------------------------------------


def judged(
    metric: Metric,
    ratio: float,
    bounds: tuple[float | None, float | None],
    percent: float,
    *,
    words: tuple[str, str] = _SPEED_WORDS,
    few: str = "too few samples for an interval",
) -> Metric:
    """The verdict for the bounds of a ratio; `few` says why a bound is not known."""
    low, high = bounds
    metric = replace(metric, ratio=ratio, low=low, high=high)
    worse = high is not None and high < 1
    if not worse and not (low is not None and low > 1):
        return metric.insignificant(few if low is None or high is None else "")
    return _by_threshold(metric, percent, words, exact=True)


def _by_threshold(
    metric: Metric, percent: float, words: tuple[str, str], *, exact: bool
) -> Metric:
    """The verdict of a difference that is not chance; an `exact` one has its words.

    Divides the larger by the smaller value, so that swapping A and B is neutral.
    """
    assert metric.a and metric.b and metric.ratio
    small = max(metric.a, metric.b) / min(metric.a, metric.b) < 1 + percent / 100
    is_chance = small and not exact
    return replace(
        metric,
        verdict=NOT_SIGNIFICANT if is_chance else ratio_text(metric.ratio, *words),
        regression=metric.ratio < 1 and not small,
        why=f"within the threshold of {percent:g} percent" if small else "",
    )


def single(
    metric: Metric,
    percent: float,
    words: tuple[str, str] = _SPEED_WORDS,
    *,
    least: float = 0.0,
) -> Metric:
    """Compares single measurements: no interval, so the threshold alone decides."""
    if not (_is_positive(metric.a) and _is_positive(metric.b)):
        return replace(metric, why="not measured in both")
    assert metric.a and metric.b
    difference = abs(metric.a - metric.b)
    metric = replace(metric, ratio=metric.a / metric.b)
    if difference < least:
        return metric.insignificant(f"less than {least:g} {metric.unit} apart")
    if metric.ratio == 1:
        return replace(metric, verdict="same")
    return _by_threshold(metric, percent, words, exact=False)


def count(name: str, a: int | None, b: int | None) -> Metric:
    """Compares numbers of events; any increase is a regression."""
    metric = Metric(name, a, b, COUNT)
    if a is None or b is None:
        return replace(metric, why="not counted in both")
    if a == b:
        return replace(metric, verdict="same")
    verdict = f"{abs(b - a)} {'more' if b > a else 'fewer'}"
    return replace(metric, verdict=verdict, regression=b > a)


def beyond(metric: Metric, eager: Metric | None, percent: float, word: str) -> Metric:
    """Drops a change that is no larger than eager's; `word` says what eager is."""
    if eager is None or not eager.ratio or not metric.significant:
        return metric
    difference = metric.log - eager.log
    if (difference if metric.log > 0 else -difference) >= math.log1p(percent / 100):
        return metric
    return metric.insignificant(f"{metric.verdict} in time, but eager is {word}")


def ratio_text(ratio: float, better: str = "faster", worse: str = "slower") -> str:
    """A text such as `1.18x faster` or `1.05x slower`."""
    return f"{ratio:.2f}x {better}" if ratio >= 1 else f"{1 / ratio:.2f}x {worse}"


def _is_positive(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


# -- the metrics of a measurement ------------------------------------------------------


def speed(a: Measurement, b: Measurement, percent: float) -> Metric:
    metric = Metric("speed", a.median_ms, b.median_ms, "ms")
    if why := _unusable(a, b):
        return _unknown(metric, why)
    return _with_verdict(metric, ratios.of_speed(a, b), percent)


def gain(
    a: tuple[Measurement, Measurement],
    b: tuple[Measurement, Measurement],
    percent: float,
) -> Metric:
    """Compares the gains over eager; takes (eager, row) of A and of B."""
    metric = Metric("vs eager", a[1].vs_eager, b[1].vs_eager, "x")
    if why := _unusable(a[0], b[0]) or _unusable(a[1], b[1]):
        return _unknown(metric, why)
    return _with_verdict(metric, ratios.of_gain(a, b), percent, ("more", "less"))


def tail(a: Measurement, b: Measurement, percent: float) -> Metric:
    metric = Metric("tail", a.p95_ms, b.p95_ms, "ms")
    if why := _unusable(a, b) or ratios.tails_differ(a, b):
        return _unknown(metric, why)
    return _with_verdict(metric, ratios.of_tail(a, b), percent)


def others(a: Measurement, b: Measurement, limits: Thresholds) -> Iterator[Metric]:
    """Yields tail, memory, compile time and counts."""
    yield tail(a, b, limits.tail)
    memory = Metric("memory", a.peak_bytes, b.peak_bytes, "bytes")
    yield single(memory, limits.memory, ("less", "more"))
    if a.strategy != "eager" and b.strategy != "eager":
        yield _compile(a, b, limits.compile)
        if a.strategy == b.strategy:
            yield from counts(a.counts or {}, b.counts or {})


def counts(
    a: Mapping[str, int | None], b: Mapping[str, int | None]
) -> Iterator[Metric]:
    for key, name in COUNTS.items():
        yield count(name, a.get(key), b.get(key))


def _compile(a: Measurement, b: Measurement, percent: float) -> Metric:
    """Compares the first calls of two cold starts."""
    metric = Metric("compile", a.first_call_s, b.first_call_s, "s")
    labels = [(row.start or {}).get("label") for row in (a, b)]
    if labels != ["cold", "cold"]:
        starts = " and ".join(label or "not known" for label in labels)
        return replace(metric, why=f"the starts are {starts}, and not both cold")
    return single(metric, percent, least=LEAST_COMPILE_S)


def _unusable(a: Measurement, b: Measurement) -> str:
    """Which of two rows has invalid times, and why; empty if neither."""
    for name, row in (("A", a), ("B", b)):
        if why := ratios.unusable(row):
            return f"the times of {name} are invalid: {why}"
    return ""


def _unknown(metric: Metric, why: str) -> Metric:
    """The metric without a verdict, and without values that are invalid."""
    values = [v if _is_positive(v) else None for v in (metric.a, metric.b)]
    return replace(metric, a=values[0], b=values[1], verdict=NOT_JUDGED, why=why)


def _with_verdict(
    metric: Metric,
    ratio: Ratio | None,
    percent: float,
    words: tuple[str, str] = _SPEED_WORDS,
) -> Metric:
    if ratio is None:
        return replace(metric, why="not measured in both")
    bounds = ratio.low, ratio.high
    return judged(metric, ratio.value, bounds, percent, words=words)
