"""Decides from one run: keep compiled, stay eager, or not enough evidence.

The decision is to keep a compiled strategy if its outputs are right, if it is faster
than eager by the threshold with an interval above 1, and if its slowest calls are not
slower than eager's. It is to stay eager if no strategy gains that much. If the interval
allows both, the evidence is not enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torchproof.measure.comparison import metrics
from torchproof.measure.comparison.metrics import EAGER, Thresholds, ratio_text
from torchproof.records import Measurement, Run, Verdict, shapes, stats

# Variants that are conditions of the measurement, and not choices of the user.
CONDITIONS = ("batch", "sequence", "dtype")
# A variant that disables guards: measured, never recommended.
UNSAFE = "guards"

Word = Literal["keep compiled", "stay eager", "not enough evidence"]


@dataclass(frozen=True)
class Decision:
    word: Word
    text: str
    strategy: str | None = None
    variant: shapes.Values = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.word}: {self.text}"


def name_of(row: Measurement) -> str:
    """Returns a name such as `full` or `full (batch 4)`."""
    more = ", ".join(f"{key} {value}" for key, value in row.variant.items())
    return f"{row.strategy} ({more})" if more else row.strategy


def exclusion_reason(row: Measurement) -> str | None:
    """Returns why a row is not ranked, such as failed, wrong or unverified, or None."""
    if row.verdict == Verdict.SKIPPED:
        return f"was skipped: {'; '.join(row.notes) or 'no reason given'}"
    if row.error:
        return f"failed: {row.error}"
    if row.verdict == Verdict.FELL_BACK:
        why = "; ".join(row.fell_back)
        return f"fell back, no CUDA graph was replayed: {why}" if why else row.verdict
    wrong = (row.numerics or {}).get("why")
    if row.verification == "wrong":
        return f"gives wrong outputs: {wrong}" if wrong else "gives wrong outputs"
    if row.median_ms is None:
        return f"was not measured{': ' + '; '.join(row.notes) if row.notes else ''}"
    if row.verification == "unverified":
        return f"is unverified: {row.why_unverified}"
    return None


def decision(run: Run, thresholds: Thresholds | None = None) -> Decision:
    """Decides for a run; if every row has a condition, for each condition."""
    limits = thresholds or Thresholds()
    groups: dict[str, list[Measurement]] = {}
    for row in run.measurements:
        conditions = [f"{k} {row.variant[k]}" for k in CONDITIONS if k in row.variant]
        groups.setdefault(", ".join(conditions), []).append(row)
    plain = groups.get("", [])
    if len(groups) <= 1 or any(row.strategy != EAGER for row in plain):
        return decide(plain or next(iter(groups.values()), []), limits)
    groups.pop("", None)
    return _joined({name: decide(rows, limits) for name, rows in groups.items()})


def decide(rows: Sequence[Measurement], limits: Thresholds) -> Decision:
    """Decides among rows that were measured under the same conditions."""
    eager = next((row for row in rows if row.strategy == EAGER), None)
    compiled = [r for r in rows if r.strategy != EAGER and UNSAFE not in r.variant]
    if eager is None or exclusion_reason(eager):
        why = exclusion_reason(eager) if eager else None
        return Decision("not enough evidence", f"eager {why or 'was not measured'}")
    if not compiled:
        return Decision("not enough evidence", "only eager was measured")
    excluded = [f"{name_of(r)} {why}" for r in compiled if (why := exclusion_reason(r))]
    ranked = [row for row in compiled if not exclusion_reason(row)]
    compared = sorted((row for row in ranked if row.vs_eager), key=_gain, reverse=True)
    if not ranked:
        text = "; ".join(excluded)
        if any(row.is_unverified for row in compiled):
            return Decision("not enough evidence", text)
        return Decision("stay eager", f"no compiled strategy can be trusted: {text}")
    if not compared:
        text = ", ".join(map(name_of, ranked))
        return Decision("not enough evidence", f"not compared with eager: {text}")
    least = 1 + limits.speed / 100
    gaining = [r for r in compared if _gain(r) >= least and (r.vs_eager_low or 0) > 1]
    for row in gaining:
        if not metrics.tail(eager, row, limits).regression:
            return _keep(row)
    if gaining:
        return Decision("stay eager", _tails(eager, gaining[0]))
    for row in compared:
        low, high = row.vs_eager_low, row.vs_eager_high
        if low is None or high is None or low <= 1 <= least <= high:
            return _unknown(row, eager)
    text = f"the best, {name_of(compared[0])}, is {_speed(compared[0])}"
    if _gain(compared[0]) >= 1:
        text += f", less than the threshold of {limits.speed:g} percent"
    return Decision("stay eager", "; ".join([text, *excluded]))


def decide_pair(
    eager: Measurement, row: Measurement, limits: Thresholds
) -> Decision | None:
    """Decides between eager of one run and the compiled row of another."""
    speed = metrics.speed(eager, row, limits)
    if not speed.ratio:
        return None
    low, high = (math.log(end) if end else None for end in (speed.low, speed.high))
    even = stats.break_even(
        row.first_call_s,
        eager.first_call_s,
        eager.median_ms,
        stats.ratio_of(speed.log, low, high),
    )
    joined = replace(
        row,
        vs_eager=speed.ratio,
        vs_eager_low=speed.low,
        vs_eager_high=speed.high,
        break_even=even.text if even else None,
        break_even_steps=even.steps if even else None,
    )
    return decide([eager, joined], limits)


def _gain(row: Measurement) -> float:
    return row.vs_eager or 0.0


def _speed(row: Measurement) -> str:
    """Returns a text such as `1.80x faster than eager (1.74 to 1.86)`."""
    text = f"{ratio_text(_gain(row))} than eager"
    low, high = row.vs_eager_low, row.vs_eager_high
    if not low or not high:
        return text
    if _gain(row) < 1:
        low, high = 1 / high, 1 / low
    return f"{text} ({low:.2f} to {high:.2f})"


def _keep(row: Measurement) -> Decision:
    text = f"{name_of(row)} is {_speed(row)}"
    if row.break_even_steps is not None:
        text += f"; compiling pays off {row.break_even}"
    return Decision("keep compiled", text, row.strategy, row.variant)


def _tails(eager: Measurement, row: Measurement) -> str:
    return (
        f"{name_of(row)} is {_speed(row)}, but one call in twenty takes"
        f" {row.p95_ms:.3g} ms or more, {eager.p95_ms:.3g} ms in eager"
    )


def _unknown(row: Measurement, eager: Measurement) -> Decision:
    """Adds what to try next, from the advice of the measurements."""
    advice = dict.fromkeys((*row.advice, *eager.advice))
    todo = "; ".join(advice) or "measure for longer, or on a quieter machine"
    text = f"{name_of(row)} is {_speed(row)}, which may be no gain. To decide: {todo}"
    return Decision("not enough evidence", text)


def _joined(decisions: Mapping[str, Decision]) -> Decision:
    """Joins the decisions of all conditions into one."""
    words = {each.word for each in decisions.values()}
    first = next(iter(decisions.values()))
    text = "; ".join(f"{name}: {each}" for name, each in decisions.items())
    if len(words) == 1 and len({each.strategy for each in decisions.values()}) == 1:
        text = "; ".join(f"{name}: {each.text}" for name, each in decisions.items())
        return replace(first, text=text, variant={})
    if words == {"keep compiled"}:
        return Decision("keep compiled", text)
    return Decision("not enough evidence", f"it depends: {text}")
