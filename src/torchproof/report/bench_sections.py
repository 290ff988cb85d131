"""The tables of a bench run, shared by the terminal, Markdown and HTML reports.

Takes a `Run`, returns `Table` records with text cells. Rows that failed or computed
wrong outputs appear only in the backend table; rows whose outputs were not compared
have their times and no ratio. `not_ranked` lists both with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torchproof.measure import (
    Decision,
    decision,
    exclusion_reason,
    name_of,
    ratio_text,
    side_by_side,
)
from torchproof.records import Measurement, Run, shapes
from torchproof.report import numbers
from torchproof.report.document import Table, columns

CONTROL = "control"  # the name of the setting that changes nothing
TITLES = {
    "batch": "Batch sizes, in measurement order",
    "sequence": "Sequence lengths, in measurement order",
    "dtype": "Precision and compilation",
    "config": "Inductor settings, one at a time",
    "backend": "Backends, layer by layer",
    "guards": "Guards",
}
PHASES = {
    "aot_autograd": "AOTAutograd",
    "graph_recording": "graph recording",
    "triton": "kernels (Triton or C++)",
}
SIZES = {"batch", "sequence"}  # variants with a chart
_FEW_RANKS = 8  # of more, only the fastest and the slowest are shown
_APART = {"config", "guards", "backend"}  # variants with a table of their own


def ranked(run: Run) -> list[Measurement]:
    """Rows without a variant whose times are valid."""
    return [
        row for row in run.measurements if not row.variant and not exclusion_reason(row)
    ]


def timed(run: Run) -> list[Measurement]:
    """Rows without a variant to show: ranked ones, and unverified ones after them."""
    rows = [row for row in run.measurements if not row.variant and is_shown(row)]
    return sorted(rows, key=lambda row: row.is_unverified)


def is_shown(row: Measurement) -> bool:
    """Whether the times of a row are shown, ranked or marked as unverified."""
    return row.is_unverified or not exclusion_reason(row)


def verdict(row: Measurement) -> str:
    """`unverified` if there are times and no verdict on the outputs."""
    return "unverified" if row.is_unverified else row.verdict or numbers.UNKNOWN


def processes(row: Measurement) -> str:
    """What stands beside an interval that does not cover processes."""
    if row.processes is None or row.interval_over == "processes":
        return ""
    return "single process" if row.processes == 1 else f"{row.processes} processes"


def interval(row: Measurement) -> str:
    """`2.41-2.60 (single process)`."""
    text, source = numbers.interval(row.low_ms, row.high_ms), processes(row)
    return f"{text} ({source})" if source and text != numbers.UNKNOWN else text


def not_ranked(run: Run) -> list[str]:
    return [
        f"{name_of(row)} {why}"
        for row in run.measurements
        if (why := exclusion_reason(row)) is not None
    ]


def chosen(run: Run) -> tuple[Decision, Measurement | None]:
    """The decision, and the row of the strategy it recommends."""
    result = decision(run)
    if result.strategy is None:
        return result, None
    name = name_of(Measurement(result.strategy, result.variant))
    return result, next((r for r in run.measurements if name_of(r) == name), None)


def gain(row: Measurement) -> str:
    """`1.62x (1.50-1.70)`; eager is the reference."""
    if row.strategy == "eager":
        return "reference"
    if row.is_unverified:
        return "unverified"
    return numbers.times(row.vs_eager, row.vs_eager_low, row.vs_eager_high)


def utilised(row: Measurement) -> str:
    """`41%`, or `>41%` if some operations could not be counted."""
    partly = bool((row.flops or {}).get("not_counted"))
    return numbers.share(row.mfu, at_least=partly)


def numerics(row: Measurement) -> str:
    found = (row.numerics or {}).get("verdict")
    if found is None and row.is_unverified:
        return "unverified"
    return str(found or numbers.UNKNOWN)


# The cells of a row by their columns.
_CELLS: dict[str, Callable[[Measurement], str]] = {
    "strategy": lambda row: row.strategy,
    "median": lambda row: numbers.milliseconds(row.median_ms),
    "interval": lambda row: numbers.interval(row.low_ms, row.high_ms),
    "vs eager": lambda row: verdict(row),
    "recompiles": lambda row: numbers.count((row.counts or {}).get("recompiles")),
    "cold": lambda row: numbers.seconds(row.first_call_s),
    "warm": lambda row: numbers.seconds((row.warm_start or {}).get("first_call_s")),
    "memory": lambda row: numbers.size(row.peak_bytes),
    "numerics": numerics,
    "MFU": utilised,
}


def _cells(
    names: str, **own: Callable[[Measurement], str]
) -> dict[str, Callable[[Measurement], str]]:
    """The cells of some columns, named in their order; `own` are others."""
    every = {**_CELLS, **{name.replace("_", " "): cell for name, cell in own.items()}}
    return {name: every[name] for name in names.split(", ")}


_MEASURED = _cells(
    "strategy, median step, interval, peak memory, vs eager, first call, numerics,"
    " verdict, MFU",
    strategy=name_of,
    median_step=_CELLS["median"],
    interval=interval,
    peak_memory=_CELLS["memory"],
    vs_eager=gain,
    first_call=_CELLS["cold"],
    verdict=verdict,
)
_COSTS = _cells("strategy, vs eager, cold, warm, memory, numerics, MFU", vs_eager=gain)


def measured(rows: Sequence[Measurement]) -> Table:
    """All of a strategy in one row, for a document that has the room."""
    return columns("", rows, _MEASURED, optional=("MFU",))


def costs(run: Run) -> Table:
    """The gain of each strategy, and its start-up time, memory and numerics."""
    return columns("", timed(run), _COSTS, optional=("MFU",))


def details(row: Measurement) -> Iterator[str]:
    """The other measurements of a strategy, one line each."""
    if row.samples is not None:
        text = f"{numbers.amount(row.samples, 'sample')}, "
        text += numbers.amount(row.outliers, "outlier")
        yield f"{text}; 95th percentile {numbers.milliseconds(row.p95_ms)}{_tail(row)}"
    yield from _interval(row)
    yield from _ranks(row)
    if row.throughput is not None:
        yield f"throughput {numbers.plain(row.throughput)} {row.unit or 'per second'}"
    yield from _operations(row)
    yield from _starts(row)
    if row.compile_s:
        phases = [
            f"{PHASES.get(name, name)} {numbers.plain(value)}"
            for name, value in row.compile_s.items()
            if name != "total"
        ]
        total = numbers.seconds(row.compile_s.get("total"))
        yield f"compile time {total}: {', '.join(phases)}"
    if row.break_even and row.strategy != "eager":
        yield f"break-even: {row.break_even}"
    yield from _counted(row)
    if row.numerics and row.numerics.get("max_rel_error") is not None:
        yield _error(row)
    yield from row.notes


def _tail(row: Measurement) -> str:
    """Which samples the 95th percentile is of."""
    if row.tail is None:
        return " without interrupted samples" if row.p95_ms is not None else ""
    text = f" of all {numbers.count(row.tail.get('samples'))} timed"
    if interrupted := row.tail.get("interrupted"):
        text += f", {interrupted} of them interrupted"
    if collector := row.tail.get("collector"):
        text += f" (garbage collector {collector})"
    return text


def _interval(row: Measurement) -> Iterator[str]:
    """What the interval of the median covers."""
    if source := processes(row):
        yield f"{source}: the interval covers rounds, not what other processes show"
    elif row.processes:
        yield f"{row.processes} processes; the interval covers them"


def _ranks(row: Measurement) -> Iterator[str]:
    """The time of each rank; of many, the extremes."""
    if not row.ranks:
        return
    order = sorted(row.ranks, key=lambda each: each.median_ms)
    shown = row.ranks if len(order) <= _FEW_RANKS else (order[0], order[-1])
    times = ", ".join(
        f"rank {each.rank} {numbers.milliseconds(each.median_ms)}" for each in shown
    )
    late = max(row.ranks, key=lambda each: each.slowest)
    yield (
        f"median by rank: {times}; rank {late.rank} was the slowest in"
        f" {late.slowest:.0%} of the passes"
    )


def _starts(row: Measurement) -> Iterator[str]:
    cold: shapes.Start | None = row.start
    if cold:
        cold = {**cold, "first_call_s": row.first_call_s}
    for start in (cold, row.warm_start):
        if not start:
            continue
        label = start.get("label", "first")
        if start.get("refused"):
            yield f"{label} start not reported: {start['refused']}"
            continue
        if row.strategy != "eager":
            yield (
                f"{label} start {numbers.seconds(start.get('first_call_s'))}: cache"
                f" hits {numbers.count(start.get('hits'))},"
                f" misses {numbers.count(start.get('misses'))},"
                f" bypasses {numbers.count(start.get('bypasses'))}{_imports(start)}"
            )


def _imports(start: shapes.Start) -> str:
    """Each process imports the compiler once, in addition to the first call."""
    spent = start.get("imports_s")
    return f"; plus {numbers.seconds(spent)} to import the compiler" if spent else ""


def _counted(row: Measurement) -> Iterator[str]:
    if row.counts and row.strategy != "eager":
        counts = {
            name: value
            for name, value in row.counts.items()
            if isinstance(value, int) and name != "while_timed"  # a note reports those
        }
        if counts:
            yield ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in counts.items())
    if row.guards and row.guards.get("lookup_us") is not None:
        share = row.guards.get("share")
        part = "" if share is None else f" ({share * 100:.1f} percent of the call)"
        yield f"guards: {numbers.plain(row.guards['lookup_us'])} us per call{part}"
    if row.kernels and row.kernels.get("per_step") is not None:
        share = row.kernels.get("busy_share")
        text = f"{numbers.count(row.kernels['per_step'])} kernels per call"
        if share is not None:
            text += f", GPU busy {share * 100:.0f} percent of the time"
        yield text


def _operations(row: Measurement) -> Iterator[str]:
    flops = row.flops or {}
    if flops.get("per_step") is None:
        return
    text = f"{numbers.operations(flops['per_step'])}FLOP per call"
    text += f", {numbers.operations(flops.get('per_second'))}FLOP/s"
    if row.mfu is not None:
        peaks = (flops.get("peak_tflops") or {}).items()
        peak = ", ".join(f"{numbers.plain(n)} TFLOP/s in {name}" for name, n in peaks)
        text += f"; MFU {utilised(row)} of the peak, {peak}"
    if not_counted := flops.get("not_counted"):
        text += f"; without {', '.join(not_counted)}, which has no formula"
    yield text


def _error(row: Measurement) -> str:
    numerics = row.numerics or {}
    text = f"largest relative error {numerics['max_rel_error']:.1e}"
    if numerics.get("reference"):
        text += f" against {numerics['reference']}"
    if numerics.get("eager_error") is not None and row.strategy != "eager":
        text += f"; eager's error is {numerics['eager_error']:.1e}"
    return text


# -- variants --------------------------------------------------------------------------


def variants(run: Run) -> list[Table]:
    """One table for each variant (batch, dtype, backend...), in measurement order."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for row in run.measurements:
        if row.variant:
            groups.setdefault(_varied(row, run), []).append(row)
    special = {("config",): _settings, ("guards",): _guards, ("backend",): _ladder}
    plain = [row for row in run.measurements if not set(row.variant) & _APART]
    return [
        special[keys](rows, plain) if keys in special else _sweep(keys, rows)
        for keys, rows in groups.items()
    ]


def _varied(row: Measurement, run: Run) -> tuple[str, ...]:
    """The variant keys whose values differ between the rows of the run."""
    same = {
        key
        for key in row.variant
        if all(other.variant.get(key) == row.variant[key] for other in run.measurements)
    }
    return tuple(key for key in row.variant if key not in same) or tuple(row.variant)


def _sweep(keys: tuple[str, ...], rows: Sequence[Measurement]) -> Table:
    sizes = {key: partial(_variant, key) for key in keys}
    cells = _cells("strategy, median, interval, vs eager, recompiles, memory")
    lines = [*(_contributions(rows) if keys == ("dtype",) else ()), *_notes(rows)]
    title = TITLES.get(keys[0], f"By {keys[0]}") if len(keys) == 1 else ""
    title = title or f"By {' and '.join(keys)}"
    shown = [row for row in rows if is_shown(row)]
    table = columns(title, shown, {**sizes, **cells}, lines).shortened()
    return replace(table, style="sweep" if {*keys} <= SIZES else "")


def _variant(key: str, row: Measurement) -> str:
    return str(row.variant[key])


def _notes(rows: Sequence[Measurement]) -> Iterator[str]:
    for row in rows:
        yield from (f"{name_of(row)}: {note}" for note in row.notes)


def _contributions(rows: Sequence[Measurement]) -> Iterator[str]:
    """The gain from precision, from compilation, and from both."""
    sound = [row for row in rows if not exclusion_reason(row)]
    by_variant = {(row.strategy, row.variant["dtype"]): row for row in sound}
    base = next((row for row in sound if row.strategy == "eager"), None)
    if base is None:
        return
    first = base.variant["dtype"]
    for (strategy, dtype), row in by_variant.items():
        steps = [f"{dtype} alone {_against(base, by_variant.get(('eager', dtype)))}"]
        steps += [
            f"{strategy} alone {_against(base, by_variant.get((strategy, first)))}"
        ]
        if strategy != "eager" and dtype != first:
            both = _against(base, row)
            yield f"against eager {first}: {', '.join(steps)}, both {both}"


def _against(base: Measurement | None, row: Measurement | None) -> str:
    """`1.20x faster` if the interval excludes 1."""
    ratio = side_by_side(base, row) if base and row else None
    if ratio is None:
        return numbers.UNKNOWN
    if ratio.verdict == "not significant":
        return ratio.verdict
    return ratio_text(ratio.value)


def _settings(rows: Sequence[Measurement], plain: Sequence[Measurement]) -> Table:
    control = next((row for row in rows if row.variant["config"] == CONTROL), None)
    cells = _cells(
        "setting, strategy, median, interval, vs control, cold, memory",
        setting=partial(_variant, "config"),
        vs_control=lambda row: "control" if row is control else _against(control, row),
    )
    sound = [row for row in rows if not exclusion_reason(row)]
    return columns(TITLES["config"], sound, cells, _notes(rows)).shortened()


def _guards(rows: Sequence[Measurement], plain: Sequence[Measurement]) -> Table:
    """The time each guard filter saves, and the guards it drops.

    The baseline is the same strategy with all its guards.
    """
    same = [row for row in plain if row.strategy == rows[0].strategy]
    base = next((row for row in same if not exclusion_reason(row)), None)
    before = (base.guards or {}).get("lookup_us") if base else None
    cells = [("baseline", numbers.plain(before), "baseline", "baseline", "nothing")]
    for row in rows:
        if exclusion_reason(row):
            continue
        after = (row.guards or {}).get("lookup_us")
        saved = _saved(base, row) if before and after else "-"
        stops = _stops(row.guards.get("not_checked")) if row.guards else "-"
        method = str(row.variant["guards"])
        cells.append((method, numbers.plain(after), saved, _against(base, row), stops))
    header = ("method", "us/call", "vs baseline", "whole step", "stops checking")
    return Table(TITLES["guards"], header, tuple(cells), tuple(_notes(rows)))


def _saved(base: Measurement | None, row: Measurement) -> str:
    """Not significant if the interquartile ranges of the lookup times overlap."""
    before = (base.guards if base else None) or shapes.Guards()
    after = row.guards or shapes.Guards()
    old, new = before.get("lookup_range_us"), after.get("lookup_range_us")
    if old and new and old[0] <= new[1] and new[0] <= old[1]:
        return "not significant"
    earlier, later = before.get("lookup_us"), after.get("lookup_us")
    return ratio_text(earlier / later, "less", "more") if earlier and later else "-"


def _stops(not_checked: Any) -> str:
    if isinstance(not_checked, Mapping):
        not_checked = [f"{name} ({value})" for name, value in not_checked.items()]
    if isinstance(not_checked, list | tuple):
        not_checked = ", ".join(map(str, not_checked))
    return str(not_checked) if not_checked else "nothing: there are no such guards"


def _ladder(rows: Sequence[Measurement], plain: Sequence[Measurement]) -> Table:
    """One row per backend; each backend adds a compiler layer to the previous one."""
    cells = _cells(
        "backend, strategy, outcome, median, vs eager, cold, numerics",
        backend=partial(_variant, "backend"),
        outcome=lambda row: (exclusion_reason(row) or "works").partition(":")[0],
        vs_eager=lambda row: "-" if exclusion_reason(row) else row.verdict or "-",
    )
    lines = [*_first_broken(rows), *_notes(rows)]
    return columns(TITLES["backend"], rows, cells, lines).shortened()


def _first_broken(rows: Sequence[Measurement]) -> Iterator[str]:
    layers = ("eager", "aot_eager", "inductor")
    reasons = {row.variant["backend"]: exclusion_reason(row) for row in rows}
    measured = [layer for layer in layers if layer in reasons]
    broken = next((layer for layer in measured if reasons[layer]), None)
    if broken:
        below = measured[: measured.index(broken)]
        works = f"works with {' and '.join(below)}; " if below else ""
        yield f"{works}the first layer that fails is {broken}: it {reasons[broken]}"
