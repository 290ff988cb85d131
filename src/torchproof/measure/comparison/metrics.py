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


@dataclass(frozen=True)
class Row:
    """One strategy in both runs. `broken` says why the row of B fails."""

    name: str
    metrics: tuple[Metric, ...] = ()
    broken: str = ""
    note: str = ""
    control: bool = False  # eager beside compiled rows; it gets no verdict
    unverified: bool = False  # the outputs of a run were not compared with eager's


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
    compared = _with_verdict(metric, ratios.of_gain(a, b), percent)
    if compared.significant and compared.ratio:
        compared = replace(compared, verdict=ratio_text(compared.ratio, "more", "less"))
    return compared


def tail(a: Measurement, b: Measurement, percent: float) -> Metric:
    metric = Metric("tail", a.p95_ms, b.p95_ms, "ms")
    if why := _unusable(a, b) or ratios.tails_differ(a, b):
        return _unknown(metric, why)
    return _with_verdict(metric, ratios.of_tail(a, b), percent)


def others(a: Measurement, b: Measurement, limits: Thresholds) -> Iterator[Metric]:
    """Yields tail, memory, compile time and counts."""
    yield tail(a, b, limits.tail)
    yield _memory(a, b, limits.memory)
    if a.strategy != "eager" and b.strategy != "eager":
        yield _compile(a, b, limits.compile)
        if a.strategy == b.strategy:
            yield from counts(a.counts or {}, b.counts or {})


def counts(
    a: Mapping[str, int | None], b: Mapping[str, int | None]
) -> Iterator[Metric]:
    """Yields the counts of breaks and recompiles; any increase is a regression."""
    for key, name in COUNTS.items():
        before, after = a.get(key), b.get(key)
        metric = Metric(name, before, after, COUNT)
        if before is None or after is None:
            yield replace(metric, why="not counted in both")
        elif before == after:
            yield replace(metric, verdict="same")
        else:
            word = "more" if after > before else "fewer"
            yield replace(
                metric,
                verdict=f"{abs(after - before)} {word}",
                regression=after > before,
            )


def ratio_text(ratio: float, better: str = "faster", worse: str = "slower") -> str:
    """Returns a text such as `1.18x faster` or `1.05x slower`."""
    return f"{ratio:.2f}x {better}" if ratio >= 1 else f"{1 / ratio:.2f}x {worse}"


def _unusable(a: Measurement, b: Measurement) -> str:
    """Returns which of two rows has invalid times, and why; empty if neither."""
    for name, row in (("A", a), ("B", b)):
        if why := ratios.unusable(row):
            return f"the times of {name} are invalid: {why}"
    return ""


def _unknown(metric: Metric, why: str) -> Metric:
    """Returns the metric without a verdict, and without values that are invalid."""
    values = [v if v and math.isfinite(v) else None for v in (metric.a, metric.b)]
    return replace(metric, a=values[0], b=values[1], verdict=NOT_JUDGED, why=why)


def _with_verdict(metric: Metric, ratio: Ratio | None, percent: float) -> Metric:
    if ratio is None:
        return replace(metric, why="not measured in both")
    metric = replace(metric, ratio=ratio.value, low=ratio.low, high=ratio.high)
    if ratio.low is None:
        few = "too few samples for an interval"
        return replace(metric, verdict=NOT_SIGNIFICANT, why=few)
    if ratio.verdict == "not significant":
        return replace(metric, verdict=NOT_SIGNIFICANT)
    small = is_small(metric, percent)
    return replace(
        metric,
        verdict=ratio_text(ratio.value),
        regression=ratio.verdict == "slower" and not small,
        why=f"within the threshold of {percent:g} percent" if small else "",
    )


def is_small(metric: Metric, percent: float) -> bool:
    """Divides the larger by the smaller value, so that swapping A and B is neutral."""
    assert metric.a and metric.b
    return max(metric.a, metric.b) / min(metric.a, metric.b) < 1 + percent / 100


def _memory(a: Measurement, b: Measurement, percent: float) -> Metric:
    metric = Metric("memory", a.peak_bytes, b.peak_bytes, "bytes")
    if not _positive(a.peak_bytes, b.peak_bytes):
        return replace(metric, why="not measured in both")
    return compare_single(metric, ("less", "more"), percent)


def _positive(*values: float | None) -> bool:
    return all(value and 0 < value < math.inf for value in values)


def _compile(a: Measurement, b: Measurement, percent: float) -> Metric:
    """Compares the first calls of two cold starts."""
    metric = Metric("compile", a.first_call_s, b.first_call_s, "s")
    labels = [(row.start or {}).get("label") for row in (a, b)]
    if labels != ["cold", "cold"]:
        starts = " and ".join(label or "not known" for label in labels)
        return replace(metric, why=f"the starts are {starts}, and not both cold")
    if not _positive(a.first_call_s, b.first_call_s):
        return replace(metric, why="not measured in both")
    assert a.first_call_s and b.first_call_s
    if abs(a.first_call_s - b.first_call_s) < LEAST_COMPILE_S:
        return replace(
            metric,
            ratio=a.first_call_s / b.first_call_s,
            verdict=NOT_SIGNIFICANT,
            why=f"less than {LEAST_COMPILE_S:g} s apart",
        )
    return compare_single(metric, ("faster", "slower"), percent)


def compare_single(metric: Metric, words: tuple[str, str], percent: float) -> Metric:
    """Compares single measurements: no interval, so the threshold alone decides."""
    assert metric.a and metric.b
    ratio = metric.a / metric.b
    small = is_small(metric, percent)
    if ratio == 1:
        return replace(metric, ratio=1.0, verdict="same")
    return replace(
        metric,
        ratio=ratio,
        verdict=NOT_SIGNIFICANT if small else ratio_text(ratio, *words),
        regression=ratio < 1 and not small,
        why=f"within the threshold of {percent:g} percent" if small else "",
    )
