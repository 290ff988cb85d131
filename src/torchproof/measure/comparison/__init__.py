"""Compares two saved runs: better, worse or not significant.

Rules for the verdict:

- Rows are matched by strategy and variant. Two runs of one row each that do not match
  are a pair: is B's strategy better than A's? More memory is then a trade-off, which is
  shown but is no regression.
- Runs from different environments (device, torch, threads...) get no verdict on time or
  memory. Counts of breaks and recompiles, and findings, are still compared.
- Eager is the control. If eager itself differs between the runs, the machine or the
  target changed. A compiled row is then faster or slower only if both its time and its
  gain over eager say so. A tail or a compile time must change by more than eager did.
- Load tests are compared only if they had the same load: rate, arrivals and seed.
- More breaks or recompiles, a row that only B fails, gets wrong or could not verify,
  and an open finding that A did not have are regressions. What neither run verified
  gets no verdict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof.measure.comparison import load_tests, metrics
from torchproof.measure.comparison.decisions import (
    Decision,
    decide_pair,
    decision,
    exclusion_reason,
    name_of,
)
from torchproof.measure.comparison.metrics import (
    NOT_JUDGED,
    NOT_SIGNIFICANT,
    Metric,
    Row,
    Thresholds,
    ratio_text,
)
from torchproof.measure.comparison.ratios import side_by_side
from torchproof.records import (
    SCHEMA,
    Finding,
    Measurement,
    Part,
    Run,
    UserError,
    findings_only_in,
    same_calls,
    to_plain,
)

__all__ = [
    "Comparison",
    "Decision",
    "Metric",
    "Row",
    "Thresholds",
    "compare",
    "decision",
    "exclusion_reason",
    "name_of",
    "ratio_text",
    "side_by_side",
]

# Fields of the environment that times depend on.
TIMING_CONDITIONS = (
    "device",
    "gpu",
    "machine",
    "cores",
    "threads",
    "torch",
    "cuda",
    "python",
    "size",
    "train",
    "ranks",
    "wrap",
)
# Without a value of these, a run differs from one that has a value: it had none.
_COMPARED_UNKNOWN = ("device", "torch", "gpu", "ranks", "wrap")
# Suffixes of variables that name folders and do not change the compiled code.
PATH_SUFFIXES = ("_DIR", "_TRACE", "_PATH")
# Without an interval of these metrics, a row is not compared.
_NEEDED = ("speed", load_tests.MEDIAN)
# Findings of these categories are regressions whatever their severity.
_ALWAYS_REGRESSIONS = {"Graph breaks", "Recompilation", "CUDA graphs", "Correctness"}


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
        """Returns one line for each thing that is worse in B."""
        lines = [f"{row.name} {row.broken}" for row in self.rows if row.broken]
        named = [
            (f"{row.name}: ", metric) for row in self.rows for metric in row.metrics
        ]
        named += [("", metric) for metric in self.counts]
        lines += [f"{n}{m.name} {m.verdict}" for n, m in named if m.regression]
        lines += [
            f"{finding.code} at {_place(finding)}"
            for finding in self.appeared
            if _is_regression(finding)
        ]
        return tuple(lines)

    @property
    def uncompared(self) -> tuple[str, ...]:
        """Returns one line for each row whose times do not compare, with the reason."""
        if self.unlike:
            return ()
        times = tuple(
            f"{row.name}: {metric.why}"
            for row in self.rows
            for metric in row.metrics
            if metric.name in _NEEDED and metric.low is None
        )
        unverified = tuple(
            f"{row.name}: {row.note}" for row in self.rows if row.unverified
        )
        return times + unverified

    @property
    def verdict(self) -> str:
        """Returns worse, better, not significant or not judged."""
        if self.regressions:
            return "worse"
        rows = [row for row in self.rows if not row.control]
        every = [m for row in rows for m in row.metrics] + list(self.counts)
        if self.gone or any(metric.improvement for metric in every):
            return "better"
        return NOT_JUDGED if self.unlike or self.uncompared else NOT_SIGNIFICANT

    def to_json(self) -> dict[str, Any]:
        summary = {
            "verdict": self.verdict,
            "regressions": list(self.regressions),
            "uncompared": list(self.uncompared),
        }
        document: dict[str, Any] = to_plain(summary) | to_plain(self)
        return {"schema": SCHEMA, "verb": "compare"} | document


def compare(a: Run, b: Run, thresholds: Thresholds | None = None) -> Comparison:
    """Compares B with A; raises `UserError` if the runs have nothing in common.

    A run of `fix` stands for its target with all verified fixes.
    """
    if "loadtest" in (a.verb, b.verb):
        return _compare_load_tests(a, b, thresholds or Thresholds())
    fixed = [name for name, run in (("A", a), ("B", b)) if run.verb == "fix"]
    a, b = _with_fixes(a), _with_fixes(b)
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
        appeared=_new_findings(a, b) if checks else (),
        gone=_gone_findings(a, b) if checks else (),
        notes=(
            *_notes(a, b, pair=pair),
            *(f"{name} is compared with all of its fixes" for name in fixed),
        ),
        decision=_decision(a, b, limits, pair=pair),
    )


def _compare_load_tests(a: Run, b: Run, limits: Thresholds) -> Comparison:
    if a.load_test is None or b.load_test is None:
        raise UserError(
            f"nothing to compare: A is a run of {a.verb}, B of {b.verb}; a load test is"
            " compared with another load test"
        )
    unlike = tuple(_unlike(a, b))
    rows = load_tests.rows(a.load_test, b.load_test, limits)
    if unlike:
        rows = [replace(row, metrics=_unjudged(row.metrics)) for row in rows]
    return Comparison(
        a={"id": a.id, "target": a.target},
        b={"id": b.id, "target": b.target},
        thresholds=limits,
        unlike=unlike,
        eager=None if unlike else load_tests.control(a.load_test, b.load_test, limits),
        rows=tuple(rows),
        notes=(*_notes(a, b, pair=True), *load_tests.notes(a.load_test, b.load_test)),
    )


def _with_fixes(run: Run) -> Run:
    if run.verb != "fix" or run.fixing is None:
        return run
    left = run.fixing.remaining
    return replace(
        run,
        verb="check",
        findings=left,
        counts=run.fixing.counts,
        parts={"breaks": Part("found" if left else "passed")},
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
    """Returns eager of both runs: of the same variant, else plain eager."""
    for eager in (("eager", key[1]), ("eager", "{}")):
        old, new = before.get(eager), after.get(eager)
        if old and new and not exclusion_reason(old) and not exclusion_reason(new):
            return old, new
    return None


def _agreed(speed: Metric, gain: Metric, eager: Metric) -> Metric:
    """Keeps a verdict on speed only if the gain over eager agrees with it."""
    if not speed.significant:
        return speed
    assert speed.ratio and gain.ratio
    if gain.significant and (speed.ratio > 1) == (gain.ratio > 1):
        if speed.why or not gain.why:
            return speed
        why = f"its gain over eager changed less: {gain.verdict}"
        return replace(speed, regression=False, why=why)
    why = f"{speed.verdict} in time, but eager is {eager.verdict}"
    return replace(speed, verdict=NOT_SIGNIFICANT, regression=False, why=why)


def _beyond(metric: Metric, eager: Metric | None, limits: Thresholds) -> Metric:
    """Drops a change of tail or compile time that is no larger than eager's."""
    if eager is None or not eager.ratio or not metric.significant:
        return metric
    least = math.log1p(getattr(limits, metric.name) / 100)
    beyond = metric.log - eager.log
    if (beyond if metric.log > 0 else -beyond) >= least:
        return metric
    why = f"{metric.verdict} in time, but eager is {ratio_text(eager.ratio)}"
    return replace(metric, verdict=NOT_SIGNIFICANT, regression=False, why=why)


def _broken(a: Measurement, b: Measurement) -> Row | None:
    """Returns the row if at least one of the runs does not rank it."""
    was, is_ = exclusion_reason(a), exclusion_reason(b)
    unverified = a.is_unverified or b.is_unverified
    if is_ and was:
        why = f"not ranked in either run; in B it {is_}"
        return Row(name_of(b), note=why, unverified=unverified)
    if is_ and b.verdict == "skipped":
        return Row(name_of(b), note=f"in B it {is_}")
    if is_:
        return Row(name_of(b), broken=is_)
    if was:
        why = f"ranked in B; in A it {was}"
        return Row(name_of(b), note=why, unverified=unverified)
    return None


def _pair(a: Measurement, b: Measurement, limits: Thresholds) -> Row:
    """Compares two strategies: higher costs are trade-offs, not regressions."""
    name = f"{name_of(a)} -> {name_of(b)}"
    if exclusion_reason(a) or exclusion_reason(b):
        text = "; ".join(
            f"{name_of(r)} {exclusion_reason(r)}" for r in (a, b) if exclusion_reason(r)
        )
        return Row(name, broken=text if exclusion_reason(b) else "", note=text)
    speed = metrics.speed(a, b, limits.speed)
    tail, *more = metrics.others(a, b, limits)
    return Row(name, (speed, tail, *(replace(m, regression=False) for m in more)))


def _unjudged(row_metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    return tuple(
        metric
        if metric.unit == metrics.COUNT
        else replace(metric, verdict=NOT_JUDGED, regression=False, why="")
        for metric in row_metrics
    )


# -- the context of the rows -----------------------------------------------------------


def _unlike(a: Run, b: Run) -> Iterator[str]:
    for key in TIMING_CONDITIONS:
        was, is_ = a.environment.get(key), b.environment.get(key)
        if key == "python":  # 3.11.7 and 3.11.9 count as the same
            was, is_ = (str(v).rpartition(".")[0] or None for v in (was, is_))
        unknown = None in (was, is_) and key not in _COMPARED_UNKNOWN
        if was != is_ and not unknown:
            was, is_ = ("-" if value is None else value for value in (was, is_))
            yield f"{key} {was} in A, {is_} in B"


def _settings(a: Run, b: Run) -> Iterator[str]:
    """Yields variables of torch that differ; they may be what the user tries out."""
    was, is_ = (run.environment.get("variables") or {} for run in (a, b))
    for name in sorted({*was, *is_}):
        if was.get(name) != is_.get(name) and not name.endswith(PATH_SUFFIXES):
            yield f"{name}={was.get(name, '-')} in A, {is_.get(name, '-')} in B"


def _eager(before: _Rows, after: _Rows, limits: Thresholds) -> Metric | None:
    control = _control(("eager", "{}"), before, after)
    return metrics.speed(*control, limits.speed) if control else None


def _notes(a: Run, b: Run, *, pair: bool) -> Iterator[str]:
    if a.target != b.target:
        yield f"different targets: {a.target} in A, {b.target} in B"
    for run, name in ((a, "A"), (b, "B")):
        if run.ending != "finished":
            yield f"{name} ended early ({run.ending})"
    for part in _unchecked_parts(a, b):
        yield f"{part} was checked in A, not in B"
    if not same_calls(a, b):
        yield "A and B made other calls: what did not occur in B may not be resolved"
    yield from _settings(a, b)
    if pair:
        return
    for one, other, where in ((a, b, "A"), (b, a, "B")):
        keys = {_key(row) for row in other.measurements}
        alone = [name_of(r) for r in one.measurements if _key(r) not in keys]
        if alone:
            yield f"only in {where}: {', '.join(alone)}"


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


# -- findings --------------------------------------------------------------------------


def _new_findings(a: Run, b: Run) -> tuple[Finding, ...]:
    """Returns open findings of B that A did not have, if A ran to its end."""
    return tuple(findings_only_in(b, a)) if _is_complete(a) else ()


def _gone_findings(a: Run, b: Run) -> tuple[Finding, ...]:
    """Returns open findings of A that B looked for, with the same calls, in vain."""
    looked = _is_complete(b) and not _unchecked_parts(a, b) and same_calls(a, b)
    return tuple(findings_only_in(a, b)) if looked else ()


def _unchecked_parts(a: Run, b: Run) -> list[str]:
    """Returns the parts that ran in A and not in B."""
    ran = {"passed", "found"}
    return [
        name
        for name, part in a.parts.items()
        if part.status in ran
        and (name not in b.parts or b.parts[name].status not in ran)
    ]


def _is_regression(finding: Finding) -> bool:
    """Whether a new finding is a regression."""
    return finding.severity != "low" or finding.category in _ALWAYS_REGRESSIONS


def _place(finding: Finding) -> str:
    return f"{finding.file}:{finding.line}" if finding.file else "-"


def _is_complete(run: Run) -> bool:
    return run.ending == "finished" and run.error is None
