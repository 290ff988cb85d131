"""The charts of a load test: latency over time, its distribution, rate against tail.

Positions are in percent, so that a chart fills the page while its text keeps its size.
Dots and bars are paths in a square of `SQUARE` units that is stretched to the chart.
Thousands of requests need no more room than the dots that a reader can tell apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchproof.records import (
    LoadResult,
    LoadTest,
    RateTrial,
    Stall,
    StallKind,
    TailCause,
)
from torchproof.report import load_sections, numbers
from torchproof.report.charts import axes
from torchproof.report.charts.axes import Axis, Mark, Place, Plot

SQUARE = 1000
_COLUMNS, _ROWS = 500, 160  # dots that can be told apart
_BINS = 80
_MOST_NUMBERS = 200  # of requests that waited
_MOST_MARKS = 30  # culprits that have a mark
_LARGE = 0.05  # the least share of a cause whose culprits have a mark
_NUMBER = (20.0, 9.0)  # width and height of a number on a phone, in percent
_VERDICTS = ("met", "missed", "undecided")
_MOST_BANDS = 300
_MERGED = 0.2  # percent of the width: stalls closer than that are drawn as one
_LABEL = 11.0  # percent of a phone's width that the name of a percentile needs
# The colour of each kind of stall, and its name in the legend.
KINDS: dict[StallKind, tuple[str, str]] = {
    "compile": ("p0", "compiling"),
    "inductor": ("p1", "Inductor"),
    "triton": ("p6", "Triton"),
    "cache_miss": ("p7", "cache miss"),
    "cudagraph": ("p4", "CUDA graph recording"),
    "gc": ("p2", "garbage collection"),
    "gil": ("p3", "GIL held by another thread"),
    "allocator": ("p5", "allocator"),
    "fallback": ("p8", "fallback"),
    "cpu": ("p9", "waiting for a CPU"),
    "prefill": ("p10", "prefill"),
}


# -- latency over time -----------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """One stall, or several of a kind that lie close together."""

    tone: str
    x: float
    width: float
    title: str
    whole: bool  # as high as the chart: not in the background, nor inside a longer one


@dataclass(frozen=True)
class Culprit:
    """A request that caused a stall; only the slowest have a label."""

    x: float
    y: float
    title: str
    label: str
    anchor: str


@dataclass(frozen=True)
class Timeline:
    """The requests of a strategy by arrival; paths are empty if they have no dot."""

    name: str
    tone: str  # met, missed, undecided
    usual: str
    slow: str
    lost: str  # requests without an answer, at the upper edge
    culprits: tuple[Culprit, ...]
    bands: tuple[Band, ...]
    warm: float | None  # where the cold phase ends
    words: str


@dataclass(frozen=True)
class Timelines:
    """One panel for each strategy, on the same axes."""

    panels: tuple[Timeline, ...]
    x: Axis
    y: Axis
    limit: float | None
    kinds: tuple[tuple[str, str], ...]  # colours and names of the stalls in the panels
    is_judged: bool  # whether there is an objective


def timelines(test: LoadTest) -> Timelines | None:
    """None if no request was answered."""
    latencies = [ms for result in test.results for _, ms in _answered(result)]
    if not latencies:
        return None
    wanted = test.objective if _limits_latency(test) else None
    limit = [wanted.limit_ms] if wanted else []
    place_y, y = axes.axis([*latencies, *limit], axes.milliseconds, log=True)
    place_x, x = axes.from_zero(_end_s(test), axes.seconds)
    panels = [_timeline(result, place_x, place_y) for result in test.results]
    kinds = {stall.kind for result in test.results for stall in result.stalls}
    return Timelines(
        panels=tuple(panels),
        x=x,
        y=axes.upwards(y),
        limit=round(100 - place_y(wanted.limit_ms), 2) if wanted else None,
        kinds=tuple(tone for kind, tone in KINDS.items() if kind in kinds),
        is_judged=test.objective is not None,
    )


def _limits_latency(test: LoadTest) -> bool:
    return test.objective is not None and test.objective.metric == "latency"


def _answered(result: LoadResult) -> Iterator[tuple[int, float]]:
    """Number and latency in ms of each request that got an answer."""
    requests, failed = result.requests, {*result.requests.failed}
    times = zip(requests.arrival_s, requests.end_s, strict=True)
    for number, (due, end) in enumerate(times):
        if end is not None and number not in failed:
            ms = (end - due) * 1e3
            if numbers.known(ms) and ms > 0:
                yield number, ms


def _end_s(test: LoadTest) -> float:
    """The last arrival of all strategies."""
    ends = [at for result in test.results for at in result.requests.arrival_s[-1:]]
    return max(ends, default=0.0) or 1.0


def _timeline(result: LoadResult, place_x: Place, place_y: Place) -> Timeline:
    arrival = result.requests.arrival_s
    answered = dict(_answered(result))
    slow = {n for tail in load_sections.tails_of(result) for n in tail.slow}
    points = {n: (place_x(arrival[n]), 100 - place_y(ms)) for n, ms in answered.items()}
    cold = result.cold.end_s if result.cold else None
    lost = [place_x(due) for n, due in enumerate(arrival) if n not in answered]
    return Timeline(
        name=result.strategy,
        tone=result.verdict or "undecided",
        usual=_dots(point for n, point in points.items() if n not in slow),
        slow=_dots(point for n, point in points.items() if n in slow),
        lost=_ticks(lost),
        culprits=tuple(_culprits(result, points, answered)),
        bands=tuple(_bands(result.stalls, place_x)),
        warm=round(place_x(cold), 2) if cold and place_x(cold) < 100 else None,
        words=_words(result, len(answered), len(slow)),
    )


def _words(result: LoadResult, answered: int, slow: int) -> str:
    """The description for screen readers."""
    latency = load_sections.latency_of(result)
    p50, p99 = (load_sections.value(latency, percent) for percent in (50.0, 99.0))
    total = len(result.requests.arrival_s)
    return (
        f"{result.strategy}: {answered} of {total} requests answered, {slow} slow,"
        f" p50 {p50} ms, p99 {p99} ms"
    )


def _dots(points: Iterable[tuple[float, float]]) -> str:
    """Lines without length, which round caps turn into dots; each place once."""
    cells = {
        (round(x / 100 * _COLUMNS), round(y / 100 * _ROWS))
        for x, y in points
        if 0 <= x <= 100 and 0 <= y <= 100
    }
    wide, high = SQUARE / _COLUMNS, SQUARE / _ROWS
    return "".join(f"M{x * wide:g} {y * high:g}h0" for x, y in sorted(cells))


def _ticks(places: Iterable[float]) -> str:
    cells = {round(x / 100 * _COLUMNS) for x in places if 0 <= x <= 100}
    return "".join(f"M{x * SQUARE / _COLUMNS:g} 0v40" for x in sorted(cells))


def _culprits(
    result: LoadResult,
    points: dict[int, tuple[float, float]],
    answered: dict[int, float],
) -> Iterator[Culprit]:
    """The slowest requests in which a stall of a large cause happened."""
    causes: dict[int, TailCause] = {}
    for tail in load_sections.tails_of(result):
        for cause in tail.causes:
            if (cause.share or 0) >= _LARGE:
                causes.update(dict.fromkeys(cause.culprits, cause))
    slowest = sorted((n for n in causes if n in points), key=lambda n: -answered[n])
    labelled: list[tuple[float, float]] = []
    for number in slowest[:_MOST_MARKS]:
        x, y = points[number]
        cause, took = causes[number], numbers.milliseconds(answered[number])
        title = f"request {number}, {took}: {cause.code} {cause.text}"
        has_room = all(
            abs(x - other[0]) > _NUMBER[0] or abs(y - other[1]) > _NUMBER[1]
            for other in labelled
        )
        labelled += [(x, y)] if has_room else []
        label = str(number) if has_room else ""
        anchor = "end" if x > 80 else "start"
        yield Culprit(round(x, 2), round(y, 2), title, label, anchor)


def _bands(stalls: Sequence[Stall], place_x: Place) -> Iterator[Band]:
    """In order of length, so that a short stall lies on top of one that contains it."""
    groups: list[list[Stall]] = []
    by_kind = sorted(stalls, key=lambda stall: (stall.kind, stall.begin_s))
    for _, same in itertools.groupby(by_kind, key=lambda stall: stall.kind):
        groups += _close_together(list(same), place_x)
    groups.sort(key=lambda group: group[0].begin_s - group[-1].end_s)
    for group in groups[:_MOST_BANDS]:
        begin, end = group[0].begin_s, max(stall.end_s for stall in group)
        x, until = max(0.0, place_x(begin)), min(100.0, place_x(end))
        if until < x:
            continue
        waited_for = all(map(_in_front, group))
        inside = any(_contains(s, begin, end) for s in stalls if _in_front(s))
        yield Band(
            tone=KINDS[group[0].kind][0],
            x=round(x, 2),
            width=round(until - x, 2),
            title=_band_title(group),
            whole=waited_for and not inside,
        )


def _in_front(stall: Stall) -> bool:
    """Whether requests wait for it; a compilation beside them only slows them down."""
    return not stall.data.get("background")


def _close_together(stalls: Sequence[Stall], place_x: Place) -> list[list[Stall]]:
    groups: list[list[Stall]] = []
    for stall in stalls:
        gap = place_x(stall.begin_s) - place_x(groups[-1][-1].end_s) if groups else 100
        if gap < _MERGED:
            groups[-1].append(stall)
        else:
            groups.append([stall])
    return groups


def _contains(stall: Stall, begin: float, end: float) -> bool:
    is_longer = stall.end_s - stall.begin_s > end - begin
    return is_longer and stall.begin_s <= begin and end <= stall.end_s


def _band_title(group: Sequence[Stall]) -> str:
    first = group[0]
    took = numbers.seconds(sum(stall.end_s - stall.begin_s for stall in group))
    many = f" ({len(group)} times)" if len(group) > 1 else ""
    where = f" in request {first.request}" if first.request is not None else ""
    return f"{first.text}{many}: {took} from {numbers.seconds(first.begin_s)}{where}"


# -- distribution ----------------------------------------------------------------------


@dataclass(frozen=True)
class Edge:
    """A percentile, with its interval; without a label if another is too close."""

    x: float
    name: str
    title: str
    label: bool
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Strip:
    name: str
    tone: str
    bars: str  # a path
    marks: tuple[Edge, ...]
    values: tuple[tuple[str, str], ...]  # percentile and its text
    lost: int


@dataclass(frozen=True)
class Distribution:
    strips: tuple[Strip, ...]
    x: Axis
    limit: float | None


def distribution(test: LoadTest) -> Distribution | None:
    """Latency after the cold phase; None if no request was answered then."""
    values = [_warm(result) for result in test.results]
    every = [ms for latencies in values for ms in latencies]
    if not every:
        return None
    wanted = test.objective if _limits_latency(test) else None
    limit = [wanted.limit_ms] if wanted else []
    place, x = axes.axis([*every, *limit], axes.milliseconds, log=True)
    pairs = zip(test.results, values, strict=True)
    strips = [_strip(result, latencies, place) for result, latencies in pairs]
    at = round(place(wanted.limit_ms), 2) if wanted else None
    return Distribution(tuple(strips), x, at)


def _warm(result: LoadResult) -> list[float]:
    is_warm = result.cold and not load_sections.stayed_cold(result)
    first = (result.cold.requests or 0) if result.cold and is_warm else 0
    return [ms for number, ms in _answered(result) if number >= first]


def _strip(result: LoadResult, latencies: Sequence[float], place: Place) -> Strip:
    values = []
    for percent in (50.0, 99.0):
        text = load_sections.value(load_sections.latency_of(result), percent)
        values.append((load_sections.percent_name(percent), text))
    return Strip(
        name=result.strategy,
        tone=result.verdict or "undecided",
        bars=_histogram([place(ms) for ms in latencies]),
        marks=tuple(_percentiles(result, place)),
        values=tuple(values),
        lost=len(result.requests.arrival_s) - sum(1 for _ in _answered(result)),
    )


def _percentiles(result: LoadResult, place: Place) -> Iterator[Edge]:
    """The median and the tail get a label first, others if there is room."""
    labelled: list[float] = []
    order = {50.0: 0, 99.0: 1, 99.9: 2}
    latency = load_sections.latency_of(result)
    for row in sorted(latency, key=lambda row: order.get(row.percent, 3)):
        if row.value_ms is None or row.value_ms <= 0:
            continue
        x = place(row.value_ms)
        has_room = all(abs(x - other) > _LABEL for other in labelled)
        labelled += [x] if has_room else []
        name = load_sections.percent_name(row.percent)
        ends = [
            None if not e else round(place(e), 2) for e in (row.low_ms, row.high_ms)
        ]
        yield Edge(
            x=round(x, 2),
            name=name,
            title=f"{name} {load_sections.spread(latency, row.percent)} ms",
            label=has_room,
            low=ends[0],
            high=ends[1],
        )


def _histogram(places: Sequence[float]) -> str:
    """Heights grow with the logarithm of the count: single slow requests are seen."""
    counts = [0] * _BINS
    for place in places:
        counts[min(_BINS - 1, max(0, int(place / 100 * _BINS)))] += 1
    most = math.log1p(max(counts, default=0)) or 1.0
    wide = SQUARE / _BINS
    path = []
    for index, count in enumerate(counts):
        if count:
            top = SQUARE * (1 - math.log1p(count) / most)
            left = index * wide
            path.append(f"M{left:g} {SQUARE}V{top:.0f}h{wide:g}V{SQUARE}z")
    return "".join(path)


# -- rate against tail -----------------------------------------------------------------


def rates(test: LoadTest) -> Plot | None:
    """None if no rate was searched, or no trial has a value."""
    searched = [(r, _drawable(r.trials)) for r in test.results]
    searched = [(result, trials) for result, trials in searched if trials]
    if not searched:
        return None
    every = [trial for _, trials in searched for trial in trials]
    wanted = test.objective
    limit = [wanted.limit_ms] if wanted else []
    tails = [_tail_ms(trial) for trial in every]
    place_x, x = axes.axis([trial.rate for trial in every], _rate)
    place_y, y = axes.axis([*tails, *limit], axes.milliseconds)
    marks, paths, keys = [], [], []
    for index, (result, trials) in enumerate(searched):
        tone, name = f"p{index % 6}", result.strategy
        points = [(place_x(t.rate), 100 - place_y(_tail_ms(t))) for t in trials]
        marks += [
            Mark(name, t.verdict, tone, round(x, 2), round(y, 2), _title(name, t))
            for (x, y), t in zip(points, trials, strict=True)
        ]
        paths.append((tone, _path(points)))
        keys.append(("dot", tone, name))
    found = [f"{r.strategy} {numbers.per_second(r.highest_rate)}" for r, _ in searched]
    words = f"Highest rate that meets the objective: {', '.join(found)}"
    return Plot(
        marks=tuple(marks),
        x=x,
        y=axes.upwards(y),
        names=("requests per second", tried_percent(test)),
        keys=(*keys, *((verdict, "", verdict) for verdict in _VERDICTS)),
        words=words,
        legend=f"{words}. The dashed line is the limit of the objective.",
        height=260,
        paths=tuple(paths),
        limit=round(100 - place_y(wanted.limit_ms), 2) if wanted else None,
    )


def tried_percent(test: LoadTest) -> str:
    """The percentile of the trials: `p99`."""
    every = [trial for result in test.results for trial in _drawable(result.trials)]
    return load_sections.percent_name(every[0].percentile.percent) if every else ""


def _path(points: Sequence[tuple[float, float]]) -> str:
    unit = SQUARE / 100
    return "M" + "L".join(f"{x * unit:.1f} {y * unit:.1f}" for x, y in points)


def _rate(value: float) -> str:
    return f"{value:g}/s"


def _drawable(trials: Sequence[RateTrial]) -> list[RateTrial]:
    known = [t for t in trials if t.percentile.value_ms and numbers.known(t.rate)]
    return sorted(known, key=lambda trial: trial.rate)


def _tail_ms(trial: RateTrial) -> float:
    assert trial.percentile.value_ms is not None
    return trial.percentile.value_ms


def _title(name: str, trial: RateTrial) -> str:
    tail = load_sections.spread([trial.percentile], trial.percentile.percent)
    percent = load_sections.percent_name(trial.percentile.percent)
    count = numbers.amount(trial.requests, "request")
    return (
        f"{name} at {_rate(trial.rate)}: {percent} {tail} ms, {trial.verdict}, {count}"
    )


# -- causes of slow requests -----------------------------------------------------------


@dataclass(frozen=True)
class Cause:
    """A cause of slow requests; the length of its bar is in percent."""

    code: str
    text: str
    share: str
    length: float
    involved: str
    remedy: str
    victims: str


def causes(found: Sequence[TailCause]) -> list[Cause]:
    return [
        Cause(
            code=cause.code,
            text=cause.text,
            share=load_sections.share(cause.share),
            length=round(min(1.0, max(0.0, cause.share or 0.0)) * 100, 2),
            involved=load_sections.involved(cause),
            remedy=cause.remedy,
            victims=_numbers(cause.victims),
        )
        for cause in found
    ]


def _numbers(members: Sequence[int]) -> str:
    """`3, 4, 5`; empty if there are none."""
    listed = ", ".join(map(str, members[:_MOST_NUMBERS]))
    more = len(members) - _MOST_NUMBERS
    return f"{listed} and {numbers.count(more)} more" if more > 0 else listed
