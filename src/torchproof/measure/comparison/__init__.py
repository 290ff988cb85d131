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
from collections.abc import Iterator, Mapping, Sequence
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
    Verdict,
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
    limits = thresholds or Thresholds()
    if "loadtest" in (a.verb, b.verb):
        return _compare_load_tests(a, b, limits)
    fixed = [name for name, run in (("A", a), ("B", b)) if run.verb == "fix"]
    a, b = _with_fixes(a), _with_fixes(b)
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
    found = _comparison(a, b, limits, rows)
    return replace(
        found,
        eager=None if pair or found.unlike else _eager(before, after, limits),
        counts=tuple(metrics.counts(a.counts, b.counts)) if a.verb == b.verb else (),
        appeared=_new_findings(a, b) if checks else (),
        gone=_gone_findings(a, b) if checks else (),
        notes=(
            *_notes(a, b),
            *(() if pair else load_tests.only_in(*map(_row_names, (a, b)))),
            *(f"{name} is compared with all of its fixes" for name in fixed),
        ),
        decision=_decision(a, b, limits, pair=pair, unlike=bool(found.unlike)),
    )


def _compare_load_tests(a: Run, b: Run, limits: Thresholds) -> Comparison:
    old, new = a.load_test, b.load_test
    if old is None or new is None:
        raise UserError(
            f"nothing to compare: A is a run of {a.verb}, B of {b.verb}; a load test is"
            " compared with another load test"
        )
    found = _comparison(a, b, limits, load_tests.rows(old, new, limits))
    return replace(
        found,
        eager=None if found.unlike else load_tests.control(old, new, limits),
        notes=(*_notes(a, b), *load_tests.notes(old, new)),
    )


def _comparison(a: Run, b: Run, limits: Thresholds, rows: Sequence[Row]) -> Comparison:
    """The rows of two runs; in unlike environments only their counts are judged."""
    unlike = tuple(_unlike(a, b))
    if unlike:
        rows = [replace(row, metrics=_unjudged(row.metrics)) for row in rows]
    before, after = ({"id": run.id, "target": run.target} for run in (a, b))
    return Comparison(before, after, limits, unlike=unlike, rows=tuple(rows))


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


def _row_names(run: Run) -> list[str]:
    return [name_of(row) for row in run.measurements]


def _names(run: Run) -> str:
    return ", ".join(_row_names(run)) or "no measurements"


_Rows = Mapping[tuple[str, str], Measurement]


def _row(key: tuple[str, str], before: _Rows, after: _Rows, limits: Thresholds) -> Row:
    a, b = before[key], after[key]
    name = name_of(b)
    if broken := _broken(a, b):
        return broken
    speed = metrics.speed(a, b, limits.speed)
    more = list(metrics.others(a, b, limits))
    control = _control(key, before, after)
    if a.strategy == "eager" or control is None:
        row = Row(name, (speed, *more))
        compiled = [name for name, _ in before.keys() & after.keys() if name != "eager"]
        return row.as_control() if a.strategy == "eager" and compiled else row
    old, new = control
    eager = metrics.speed(old, new, limits.speed)
    gain = metrics.gain((old, a), (new, b), limits.speed)
    if eager.significant:
        speed = _agreed(speed, gain, eager)
    controls = {"tail": metrics.tail(old, new, limits.tail), "compile": eager}
    for number, metric in enumerate(more):
        if (base := controls.get(metric.name)) is not None and base.ratio:
            percent = getattr(limits, metric.name)
            word = ratio_text(base.ratio)
            more[number] = metrics.beyond(metric, base, percent, word)
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
    return speed.insignificant(f"{speed.verdict} in time, but eager is {eager.verdict}")


def _broken(a: Measurement, b: Measurement) -> Row | None:
    """Returns the row if at least one of the runs does not rank it."""
    was, is_ = exclusion_reason(a), exclusion_reason(b)
    if not was and not is_:
        return None
    row = Row(name_of(b), unverified=a.is_unverified or b.is_unverified)
    if is_ and was:
        return replace(row, note=f"not ranked in either run; in B it {is_}")
    if was:
        return replace(row, note=f"ranked in B; in A it {was}")
    if b.verdict == Verdict.SKIPPED:
        return Row(name_of(b), note=f"in B it {is_}")
    return Row(name_of(b), broken=is_ or "")


def _pair(a: Measurement, b: Measurement, limits: Thresholds) -> Row:
    """Compares two strategies: higher costs are trade-offs, not regressions."""
    name = f"{name_of(a)} -> {name_of(b)}"
    excluded = [f"{name_of(r)} {why}" for r in (a, b) if (why := exclusion_reason(r))]
    if text := "; ".join(excluded):
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


def _notes(a: Run, b: Run) -> Iterator[str]:
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


def _decision(
    a: Run, b: Run, limits: Thresholds, *, pair: bool, unlike: bool
) -> Decision | None:
    if not b.measurements:
        return None
    if pair:
        old, new = a.measurements[0], b.measurements[0]
        eager, row = (old, new) if old.strategy == "eager" else (new, old)
        if eager.strategy == "eager" and not unlike:
            return decide_pair(eager, row, limits)
    return decision(b, limits)


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
