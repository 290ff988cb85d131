"""The charts of the page as records, with lengths in percent of the available width.

Percentages let a chart fill the page while its text stays readable on a phone. A value
that was not measured has no row, and a chart without rows is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchproof.measure import exclusion_reason
from torchproof.records import Measurement, Run
from torchproof.report import bench_sections, numbers, run_words

_MOST = 12  # strategies


@dataclass(frozen=True)
class Bar:
    """One measurement. `ticks` are the medians of its rounds."""

    name: str
    tone: str  # eager, faster, slower, level
    length: float
    median: str
    interval: str
    samples: str
    verdict: str
    whisker: tuple[float, float] | None = None
    ticks: tuple[float, ...] = ()
    recompiles: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Bars:
    bars: tuple[Bar, ...]
    end: str  # the value at full length
    reference: float | None = None  # position of eager's median
    beyond: int = 0  # medians of rounds beyond the scale
    title: str = ""


@dataclass(frozen=True)
class Segment:
    tone: str  # the same colour in every bar
    label: str
    start: float
    length: float
    value: str


@dataclass(frozen=True)
class Phases:
    """The compile time of a strategy, split into phases."""

    name: str
    total: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Meter:
    """A share of a whole."""

    name: str
    length: float
    value: str
    note: str = ""


Shares = tuple[str, list[Meter]]  # a title and its meters


def shared(run: Run) -> dict[str, Any]:
    """The variant values that all rows have in common."""
    rows = run.measurements
    first = rows[0].variant if rows else {}
    return {
        key: value
        for key, value in first.items()
        if all(key in row.variant and row.variant[key] == value for row in rows)
    }


def plain(run: Run) -> list[Measurement]:
    """Rows with a time to show that differ only by their strategy."""
    same = shared(run)
    return [
        row
        for row in run.measurements
        if dict(row.variant) == same
        and bench_sections.is_shown(row)
        and numbers.known(row.median_ms)
    ]


def strategies(run: Run) -> Bars | None:
    return _bars([(row.strategy, row) for row in plain(run)])


def sweeps(run: Run) -> list[Bars]:
    """One chart for each size that the run varied, in measurement order."""
    same, groups = shared(run), dict[tuple[str, ...], list[Measurement]]()
    for row in run.measurements:
        keys = tuple(key for key in row.variant if key not in same)
        if keys and {*keys} <= bench_sections.SIZES and bench_sections.is_shown(row):
            groups.setdefault(keys, []).append(row)
    all_charts = [_sweep(keys, rows) for keys, rows in groups.items()]
    return [chart for chart in all_charts if chart]


def _sweep(keys: tuple[str, ...], rows: Sequence[Measurement]) -> Bars | None:
    order = list(dict.fromkeys(_size(row, keys) for row in rows))
    rows = sorted(rows, key=lambda row: order.index(_size(row, keys)))
    title = " and ".join(f"{key} size" if key == "batch" else key for key in keys)
    title = f"By {title}, in measurement order"
    names = {row.strategy for row in rows}
    if len(names) == 1:
        title += f" ({names.pop()})"
    named = [
        (f"{_size(row, keys)} {row.strategy}" if names else _size(row, keys), row)
        for row in rows
        if numbers.known(row.median_ms)
    ]
    return _bars(named, title=title, reference=False)


def _size(row: Measurement, keys: tuple[str, ...]) -> str:
    return ", ".join(f"{key} {row.variant[key]}" for key in keys)


# -- bars ------------------------------------------------------------------------------


def _bars(
    rows: Sequence[tuple[str, Measurement]], *, title: str = "", reference: bool = True
) -> Bars | None:
    if not rows:
        return None
    rounds = {name: _rounds(row) for name, row in rows}
    reach = [_reach(row, rounds[name]) for name, row in rows]
    end = max(reach) or 1.0
    eager = next((row for _, row in rows if row.strategy == "eager"), None)
    drawn = tuple(_bar(name, row, rounds[name], end) for name, row in rows)
    return Bars(
        drawn,
        end=numbers.milliseconds(end),
        reference=_percent(eager.median_ms, end) if eager and reference else None,
        beyond=sum(median > end for each in rounds.values() for median in each),
        title=title,
    )


def _reach(row: Measurement, rounds: Sequence[float]) -> float:
    """The end of its bar; a few much slower rounds do not extend the scale."""
    edges = [edge for edge in (row.median_ms, row.high_ms) if numbers.known(edge)]
    usual = sorted(rounds)[: max(1, round(len(rounds) * 0.9))]
    limit = 1.3 * max([*edges, *usual])
    return max([*edges, *(median for median in rounds if median <= limit)])


def _bar(name: str, row: Measurement, rounds: Sequence[float], end: float) -> Bar:
    low, high = row.low_ms, row.high_ms
    spread = numbers.known(low) and numbers.known(high)
    amount = numbers.amount(row.samples, "sample") if row.samples else ""
    amount = ", ".join(filter(None, (amount, bench_sections.processes(row))))
    return Bar(
        name=name,
        tone=_tone(row),
        length=_percent(row.median_ms, end),
        median=numbers.milliseconds(row.median_ms),
        interval=numbers.interval(low, high) if spread else "",
        samples=amount,
        verdict=_verdict(row),
        whisker=(_percent(low, end), _percent(high, end)) if spread else None,
        ticks=tuple(_percent(median, end) for median in rounds if median <= end),
        recompiles=(row.counts or {}).get("recompiles"),
        note="; ".join(row.notes),
    )


def _verdict(row: Measurement) -> str:
    compared = row.vs_eager is not None or row.is_unverified
    if compared or row.strategy == "eager":
        return bench_sections.verdict(row)
    return ""


def _rounds(row: Measurement) -> list[float]:
    medians = [statistics.median(each) for each in row.rounds_ms if each]
    return [median for median in medians if numbers.known(median)]


def _tone(row: Measurement) -> str:
    if row.strategy == "eager":
        return "eager"
    return run_words.tone(row.vs_eager_low, row.vs_eager_high)


def _percent(value: float | None, end: float) -> float:
    assert value is not None
    return round(min(100.0, 100 * value / end), 2)


# -- where the time goes ---------------------------------------------------------------


def phases(run: Run) -> list[Phases]:
    """The compile phases by strategy; the longest bar has the full width."""
    rows = [row for row in plain(run) if row.compile_s]
    rows = rows or [row for row in run.measurements if not exclusion_reason(row)]
    seconds = [(row, _seconds(row.compile_s)) for row in rows[:_MOST]]
    end = max((sum(spent.values()) for _, spent in seconds), default=0.0)
    alone = len({row.strategy for row in rows}) == len(rows)
    return [
        Phases(
            row.strategy if alone else _named(row),
            numbers.seconds(sum(spent.values())),
            tuple(_segments(spent, end)),
        )
        for row, spent in seconds
        if sum(spent.values()) > 0
    ]


def _named(row: Measurement) -> str:
    return " ".join([row.strategy, *(f"{k} {v}" for k, v in row.variant.items())])


def _seconds(spent: Mapping[str, float] | None) -> dict[str, float]:
    items = (spent or {}).items()
    return {key: s for key, s in items if key != "total" and numbers.known(s) and s > 0}


def _segments(spent: Mapping[str, float], end: float) -> Iterator[Segment]:
    start = 0.0
    for key, value in spent.items():
        length = 100 * value / end
        label = bench_sections.PHASES.get(key, key)
        text = numbers.seconds(value)
        yield Segment(
            tone=_phase(key),
            label=label,
            start=round(start, 2),
            length=round(length, 2),
            value=text,
        )
        start += length


def _phase(key: str) -> str:
    order = ("dynamo", "aot_autograd", "inductor", "triton", "graph_recording")
    return f"p{order.index(key) if key in order else len(order)}"


def shares(run: Run) -> list[Shares]:
    """The share of compiled calls, of guards and kernels in a call, of the peak."""
    rows = plain(run)
    meters_by_title = {
        "Compiled calls": _compiled(run),
        "Guards, share of a call": filter(None, map(_guards, rows)),
        "GPU busy, share of a call": filter(None, map(_kernels, rows)),
        "MFU, share of the device's peak": filter(None, map(_utilised, rows)),
    }
    return [
        (title, meters)
        for title, each in meters_by_title.items()
        if (meters := list(each))
    ]


def _compiled(run: Run) -> Iterator[Meter]:
    calls, compiled = run.counts.get("calls"), run.counts.get("compiled_calls")
    if numbers.known(calls) and numbers.known(compiled) and calls:
        yield Meter("calls", _share(compiled / calls), f"{compiled} of {calls}")


def _guards(row: Measurement) -> Meter | None:
    part = (row.guards or {}).get("share")
    if not numbers.known(part):
        return None
    note = f"{numbers.plain((row.guards or {}).get('lookup_us'))} us"
    return Meter(row.strategy, _share(part), f"{part:.1%}", note)


def _kernels(row: Measurement) -> Meter | None:
    part = (row.kernels or {}).get("busy_share")
    if not numbers.known(part):
        return None
    note = f"{numbers.count((row.kernels or {}).get('per_step'))} kernels"
    return Meter(row.strategy, _share(part), f"{part:.0%}", note)


def _utilised(row: Measurement) -> Meter | None:
    if not numbers.known(row.mfu):
        return None
    speed = numbers.operations((row.flops or {}).get("per_second"))
    note = f"{speed}FLOP/s"
    return Meter(row.strategy, _share(row.mfu), bench_sections.utilised(row), note)


def _share(part: float) -> float:
    return round(min(100.0, 100 * part), 2)
