"""Two saved runs in, one comparison out: better, worse or not significant.

What a verdict on speed rests on:

- Rows are matched by strategy and variant. Two runs that share none, with one row
  each, are a pair: is B's strategy better than A's? Memory is then a trade-off, shown
  and not counted against B.
- Runs from unlike environments (device, torch, threads...) get no verdict on time or
  memory. Counts of breaks and recompiles, and findings, are compared all the same.
- Eager is the control. Where eager itself differs between the runs, the machine or the
  whole target changed, and nothing in the runs tells which: a compiled row is then
  called faster or slower only if the clock and its gain over eager agree. Of a tail
  or a compile time, only what goes beyond eager's own change counts.
- Any growth of breaks or recompiles, a row that fails or is wrong in B alone, and an
  open finding that A did not have, are regressions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof.measure.comparison import findings, metrics
from torchproof.measure.comparison.decisions import (
    Decision,
    decide_pair,
    decision,
    name_of,
    trouble,
)
from torchproof.measure.comparison.metrics import (
    NOT_JUDGED,
    NOT_SIGNIFICANT,
    Metric,
    Thresholds,
    in_words,
)
from torchproof.measure.comparison.ratios import side_by_side
from torchproof.records import SCHEMA, Finding, Measurement, Run, UserError, finite

__all__ = [
    "Comparison",
    "Decision",
    "Metric",
    "Row",
    "Thresholds",
    "compare",
    "decision",
    "in_words",
    "name_of",
    "side_by_side",
    "trouble",
]

# Facts of the environment that times depend on.
TIMED_UNDER: tuple[str, ...] = ("device", "gpu", "machine", "cores", "threads")
TIMED_UNDER += ("torch", "cuda", "python", "size", "train")
# Variables that say where files go, not how to compile.
PATHS = ("_DIR", "_TRACE", "_PATH")


@dataclass(frozen=True)
class Row:
    """One strategy in both runs. `broken` says what B no longer does."""

    name: str
    metrics: tuple[Metric, ...] = ()
    broken: str = ""
    note: str = ""
    control: bool = False  # eager beside compiled rows: it judges, it is not judged


@dataclass(frozen=True)
class Comparison:
    a: Mapping[str, Any] = field(hash=False)  # id, target
    b: Mapping[str, Any] = field(hash=False)
    thresholds: Thresholds
    unlike: tuple[str, ...] = ()
    eager: Metric | None = None
    rows: tuple[Row, ...] = ()
    counts: tuple[Metric, ...] = ()
    appeared: tuple[Finding, ...] = ()
    gone: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    decision: Decision | None = None

    @property
    def regressions(self) -> tuple[str, ...]:
        """What is worse in B, a line each."""
        found = [f"{row.name} {row.broken}" for row in self.rows if row.broken]
        named = [
            (f"{row.name}: ", metric) for row in self.rows for metric in row.metrics
        ]
        named += [("", metric) for metric in self.counts]
        found += [f"{n}{m.name} {m.verdict}" for n, m in named if m.regression]
        found += [
            f"{f.code} at {findings.place(f)}"
            for f in self.appeared
            if findings.counts(f)
        ]
        return tuple(found)

    @property
    def uncompared(self) -> tuple[str, ...]:
        """Rows of both runs whose times cannot be compared, a line each with why."""
        if self.unlike:
            return ()
        return tuple(
            f"{row.name}: {metric.why}"
            for row in self.rows
            for metric in row.metrics
            if metric.name == "speed" and metric.low is None
        )

    @property
    def verdict(self) -> str:
        """worse, better, not significant or not judged."""
        if self.regressions:
            return "worse"
        judged = [row for row in self.rows if not row.control]
        every = [m for row in judged for m in row.metrics] + list(self.counts)
        if self.gone or any(m.improvement or "fewer" in m.verdict for m in every):
            return "better"
        return NOT_JUDGED if self.unlike or self.uncompared else NOT_SIGNIFICANT

    def to_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(
            replace(self, appeared=(), gone=())  # findings have a JSON of their own
        )
        plain["appeared"] = [finding.to_json() for finding in self.appeared]
        plain["gone"] = [finding.to_json() for finding in self.gone]
        said = {"verdict": self.verdict, "regressions": list(self.regressions)}
        said["uncompared"] = list(self.uncompared)
        whole: dict[str, Any] = finite(said | plain)
        return {"schema": SCHEMA, "verb": "compare"} | whole


def compare(a: Run, b: Run, thresholds: Thresholds | None = None) -> Comparison:
    """B judged against A. Runs that have nothing in common are the user's mistake."""
    limits = thresholds or Thresholds()
    unlike = tuple(_unlike(a, b))
    before, after = ({_key(r): r for r in run.measurements} for run in (a, b))
    shared = [key for key in before if key in after]
    pair = not shared and len(before) == len(after) == 1
    checks = a.verb == b.verb == "check"
    if not (shared or pair or checks):
        raise UserError(f"nothing to compare: A has {_names(a)}, B has {_names(b)}")
    if pair:
        (old,), (new,) = before.values(), after.values()
        rows = [_pair(old, new, limits)]
    else:
        rows = [_row(key, before, after, limits) for key in shared]
    if unlike:
        rows = [replace(row, metrics=_unjudged(row.metrics)) for row in rows]
    return Comparison(
        a={"id": a.id, "target": a.target},
        b={"id": b.id, "target": b.target},
        thresholds=limits,
        unlike=unlike,
        eager=None if pair or unlike else _eager(before, after, limits),
        rows=tuple(rows),
        counts=tuple(metrics.counts(a.counts, b.counts)) if a.verb == b.verb else (),
        appeared=findings.appeared(a, b) if checks else (),
        gone=findings.gone(a, b) if checks else (),
        notes=tuple(_notes(a, b, pair=pair)),
        decision=_decision(a, b, limits, pair=pair),
    )


# -- rows ------------------------------------------------------------------------------


def _key(row: Measurement) -> tuple[str, str]:
    return row.strategy, json.dumps(dict(row.variant), sort_keys=True)


def _names(run: Run) -> str:
    return ", ".join(map(name_of, run.measurements)) or "no measurements"


_Rows = Mapping[tuple[str, str], Measurement]


def _row(key: tuple[str, str], before: _Rows, after: _Rows, limits: Thresholds) -> Row:
    a, b = before[key], after[key]
    name = name_of(b)
    if broken := _broken(a, b):
        return broken
    speed = metrics.speed(a, b, limits.speed)
    more = list(metrics.others(a, b, limits))
    control = _control(key, before, after)
    if a.strategy == "eager":
        if any(strategy != "eager" for strategy, _ in before.keys() & after.keys()):
            every = (replace(metric, regression=False) for metric in (speed, *more))
            return Row(name, tuple(every), control=True)
        return Row(name, (speed, *more))
    if control is None:
        return Row(name, (speed, *more))
    old, new = control
    eager = metrics.speed(old, new, limits.speed)
    gain = metrics.gain((old, a), (new, b), limits.speed)
    if eager.significant:
        speed = _agreed(speed, gain, eager)
    controls = {"tail": metrics.tail(old, new, limits.tail), "compile": eager}
    more = [_beyond(metric, controls.get(metric.name), limits) for metric in more]
    return Row(name, (speed, replace(gain, regression=False), *more))


def _control(
    key: tuple[str, str], before: _Rows, after: _Rows
) -> tuple[Measurement, Measurement] | None:
    """Eager under the same variant in both runs, else plain eager."""
    for eager in (("eager", key[1]), ("eager", "{}")):
        old, new = before.get(eager), after.get(eager)
        if old and new and not trouble(old) and not trouble(new):
            return old, new
    return None


def _agreed(speed: Metric, gain: Metric, eager: Metric) -> Metric:
    """Where eager differs: what the clock and the gain over eager agree on."""
    if not speed.significant:
        return speed
    assert speed.ratio and gain.ratio
    if gain.significant and (speed.ratio > 1) == (gain.ratio > 1):
        if speed.why or not gain.why:
            return speed
        told = f"its gain over eager changed by less than it: {gain.verdict}"
        return replace(speed, regression=False, why=told)
    told = f"{speed.verdict} by the clock, while eager is {eager.verdict}"
    return replace(speed, verdict=NOT_SIGNIFICANT, regression=False, why=told)


def _beyond(metric: Metric, eager: Metric | None, limits: Thresholds) -> Metric:
    """Tail and compile time: what eager changed by as well is not theirs."""
    if eager is None or not eager.ratio or not metric.significant:
        return metric
    least = math.log1p(getattr(limits, metric.name) / 100)
    beyond = metric.log - eager.log
    if (beyond if metric.log > 0 else -beyond) >= least:
        return metric
    told = f"{metric.verdict} by the clock, while eager is {in_words(eager.ratio)}"
    return replace(metric, verdict=NOT_SIGNIFICANT, regression=False, why=told)


def _broken(a: Measurement, b: Measurement) -> Row | None:
    """A row that one of the runs does not rank."""
    was, is_ = trouble(a), trouble(b)
    if is_ and was:
        return Row(name_of(b), note=f"in neither run ranked; in B it {is_}")
    if is_ and b.verdict == "skipped":
        return Row(name_of(b), note=f"in B it {is_}")
    if is_:
        return Row(name_of(b), broken=is_)
    return Row(name_of(b), note=f"cured in B; in A it {was}") if was else None


def _pair(a: Measurement, b: Measurement, limits: Thresholds) -> Row:
    """Two strategies: what costs more than in A is a price, not a regression."""
    name = f"{name_of(a)} -> {name_of(b)}"
    if trouble(a) or trouble(b):
        text = "; ".join(f"{name_of(r)} {trouble(r)}" for r in (a, b) if trouble(r))
        return Row(name, broken=text if trouble(b) else "", note=text)
    speed = metrics.speed(a, b, limits.speed)
    tail, *more = metrics.others(a, b, limits)
    return Row(name, (speed, tail, *(replace(m, regression=False) for m in more)))


def _unjudged(found: tuple[Metric, ...]) -> tuple[Metric, ...]:
    return tuple(
        metric
        if metric.unit == "count"
        else replace(metric, verdict=NOT_JUDGED, regression=False, why="")
        for metric in found
    )


# -- what stands around the rows -------------------------------------------------------


def _unlike(a: Run, b: Run) -> Iterator[str]:
    for key in TIMED_UNDER:
        was, is_ = a.environment.get(key), b.environment.get(key)
        if key == "python":  # 3.11.7 and 3.11.9 are alike
            was, is_ = (str(v).rpartition(".")[0] or None for v in (was, is_))
        unknown = None in (was, is_) and key not in ("device", "torch", "gpu")
        if was != is_ and not unknown:
            was, is_ = ("-" if value is None else value for value in (was, is_))
            yield f"{key} {was} in A, {is_} in B"


def _settings(a: Run, b: Run) -> Iterator[str]:
    """Variables that steer torch and differ: perhaps what is being tried."""
    was, is_ = (run.environment.get("variables") or {} for run in (a, b))
    for name in sorted({*was, *is_}):
        if was.get(name) != is_.get(name) and not name.endswith(PATHS):
            yield f"{name}={was.get(name, '-')} in A, {is_.get(name, '-')} in B"


def _eager(before: _Rows, after: _Rows, limits: Thresholds) -> Metric | None:
    control = _control(("eager", "{}"), before, after)
    return metrics.speed(*control, limits.speed) if control else None


def _notes(a: Run, b: Run, *, pair: bool) -> Iterator[str]:
    if a.target != b.target:
        yield f"different targets: {a.target} in A, {b.target} in B"
    for run, name in ((a, "A"), (b, "B")):
        if run.ending != "finished":
            yield f"{name} was ended early ({run.ending})"
    for part in findings.unchecked(a, b):
        yield f"{part} was checked in A, not in B"
    yield from _settings(a, b)
    if pair:
        return
    for one, other, where in ((a, b, "A"), (b, a, "B")):
        keys = {_key(row) for row in other.measurements}
        alone = [name_of(r) for r in one.measurements if _key(r) not in keys]
        if alone:
            yield f"in {where} alone: {', '.join(alone)}"


def _decision(a: Run, b: Run, limits: Thresholds, *, pair: bool) -> Decision | None:
    if not b.measurements:
        return None
    if pair:
        old, new = a.measurements[0], b.measurements[0]
        eager, row = (old, new) if old.strategy == "eager" else (new, old)
        if eager.strategy == "eager" and not _unlike_any(a, b):
            return decide_pair(eager, row, limits)
    return decision(b, limits)


def _unlike_any(a: Run, b: Run) -> bool:
    return next(_unlike(a, b), None) is not None
