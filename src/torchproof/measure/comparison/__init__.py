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
    EAGER,
    Change,
    Metric,
    Row,
    Thresholds,
)
from torchproof.records import (
    SCHEMA,
    Finding,
    JsonObject,
    Measurement,
    Part,
    Run,
    UserError,
    Verdict,
    findings_only_in,
    same_calls,
    to_plain,
)

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
# By strategy and variant.
_Rows = Mapping[tuple[str, str], Row]
# Suffixes of variables that name folders and do not change the compiled code.
PATH_SUFFIXES = ("_DIR", "_TRACE", "_PATH")
# Findings of these categories are regressions whatever their severity.
_ALWAYS_REGRESSIONS = {"Graph breaks", "Recompilation", "CUDA graphs", "Correctness"}


@dataclass(frozen=True)
class Comparison:
    a: Mapping[str, str] = field(hash=False)  # id, target
    b: Mapping[str, str] = field(hash=False)
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
            if metric.kind.needed and metric.low is None
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
        unknown = self.unlike or self.uncompared
        return Change.NOT_JUDGED if unknown else Change.NOT_SIGNIFICANT

    def to_json(self) -> JsonObject:
        summary = {
            "verdict": self.verdict,
            "regressions": list(self.regressions),
            "uncompared": list(self.uncompared),
        }
        document: JsonObject = to_plain(summary) | to_plain(self)
        return {"schema": SCHEMA, "verb": "compare"} | document


def compare(a: Run, b: Run, thresholds: Thresholds | None = None) -> Comparison:
    """Compares B with A; raises `UserError` if the runs have nothing in common.

    A run of `fix` stands for its target with all verified fixes.
    """
    limits = thresholds or Thresholds()
    verbs = {"A": a.verb, "B": b.verb}
    a, b = _with_fixes(a), _with_fixes(b)
    before, after = _by_key(a), _by_key(b)
    shared = [key for key in before if key in after]
    checks = a.verb == b.verb == "check"
    pair = not shared and len(a.measurements) == len(b.measurements) == 1
    notes = [*_notes(a, b)]
    if "loadtest" in (a.verb, b.verb):
        old, new = load_tests.comparable(a, b)
        notes += load_tests.notes(old, new)
        rows = {
            key: load_tests.row((before[key], after[key]), (old, new), limits)
            for key in shared
        }
    else:
        rows = {key: _row(before[key], after[key], limits) for key in shared}
    if pair:
        rows = {("", ""): _pair(a.measurements[0], b.measurements[0], limits)}
    elif not (shared or checks):
        names = [", ".join(_names(run)) or "no measurements" for run in (a, b)]
        raise UserError(f"nothing to compare: A has {names[0]}, B has {names[1]}")
    else:
        notes += _only_in(a, b)
    for name, verb in verbs.items():
        notes += [f"{name} is compared with all of its fixes"] * (verb == "fix")
    unlike, judged = tuple(_unlike(a, b)), _judged(rows, limits)
    same = a.verb == b.verb != "loadtest"
    return Comparison(
        {"id": a.id, "target": a.target},
        {"id": b.id, "target": b.target},
        limits,
        unlike=unlike,
        eager=None if unlike else _eager(rows),
        rows=tuple(map(_unjudged, judged) if unlike else judged),
        counts=tuple(metrics.counts(a.counts, b.counts)) if same else (),
        appeared=_new_findings(a, b) if checks else (),
        gone=_gone_findings(a, b) if checks else (),
        notes=tuple(notes),
        decision=_decision(a, b, limits, pair=pair, unlike=bool(unlike)),
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


def _by_key(run: Run) -> dict[tuple[str, str], Any]:
    """The measurements, or the results of a load test."""
    if run.load_test is not None:
        return {(result.strategy, "{}"): result for result in run.load_test.results}
    return {
        (row.strategy, json.dumps(dict(row.variant), sort_keys=True)): row
        for row in run.measurements
    }


def _names(run: Run) -> list[str]:
    if run.load_test is not None:
        return [result.strategy for result in run.load_test.results]
    return [name_of(row) for row in run.measurements]


def _only_in(a: Run, b: Run) -> Iterator[str]:
    """The rows that one of two runs has alone."""
    names = _names(a), _names(b)
    for one, other, where in ((*names, "A"), (*reversed(names), "B")):
        if alone := [name for name in one if name not in other]:
            yield f"only in {where}: {', '.join(alone)}"


def _row(a: Measurement, b: Measurement, limits: Thresholds) -> Row:
    """A strategy in A and in B; a run may not rank it."""
    name, was, is_ = name_of(b), exclusion_reason(a), exclusion_reason(b)
    if not was and not is_:
        return Row(name, tuple(metrics.of_rows(a, b, limits)))
    row = Row(name, unverified=a.is_unverified or b.is_unverified)
    if is_ and was:
        return replace(row, note=f"not ranked in either run; in B it {is_}")
    if was:
        return replace(row, note=f"ranked in B; in A it {was}")
    if b.verdict == Verdict.SKIPPED:
        return Row(name, note=f"in B it {is_}")
    return Row(name, broken=is_ or "")


def _pair(a: Measurement, b: Measurement, limits: Thresholds) -> Row:
    """Compares two strategies: higher costs are trade-offs, not regressions."""
    name = f"{name_of(a)} -> {name_of(b)}"
    excluded = [f"{name_of(r)} {why}" for r in (a, b) if (why := exclusion_reason(r))]
    if text := "; ".join(excluded):
        return Row(name, broken=text if exclusion_reason(b) else "", note=text)
    found = metrics.of_rows(a, b, limits)
    return Row(name, tuple(_without_costs(metric) for metric in found))


def _without_costs(metric: Metric) -> Metric:
    is_time = metric.name in ("speed", "tail")
    return metric if is_time else replace(metric, regression=False)


def _judged(rows: _Rows, limits: Thresholds) -> Iterator[Row]:
    """The rows against the control: eager of the same variant, else plain eager."""
    has_others = any(strategy != EAGER for strategy, _ in rows)
    for (strategy, variant), row in rows.items():
        if strategy == EAGER:
            yield row.without_regressions(control=True) if has_others else row
            continue
        controls = [rows.get((EAGER, each)) for each in (variant, "{}")]
        eager = next((each for each in controls if each and each.metrics), None)
        yield row.beyond(eager, limits) if eager else row


def _eager(rows: _Rows) -> Metric | None:
    """The time of plain eager, if it is the control of other rows."""
    row = rows.get((EAGER, "{}"))
    return row.metrics[0] if row and row.metrics and len(rows) > 1 else None


def _unjudged(row: Row) -> Row:
    """The row without verdicts on time and memory."""
    found = (
        metric
        if metric.unit == metrics.COUNT
        else metric.without_verdict(Change.NOT_JUDGED)
        for metric in row.metrics
    )
    return replace(row, metrics=tuple(found))


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
