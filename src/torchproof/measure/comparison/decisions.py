"""What to do, from one run: keep compiled, stay eager, or not enough evidence.

A compiled strategy is kept when its outputs are right, it is faster than eager by the
threshold with an interval above 1, and its slowest calls are not slower than eager's.
Eager stays when no strategy gains that much. Where the interval leaves both open, the
evidence does not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torchproof.measure.comparison import ratios
from torchproof.measure.comparison.metrics import Thresholds, in_words
from torchproof.records import Measurement, Run, stats

# What a row was measured under, rather than what a user chooses.
CONDITIONS = ("batch", "sequence", "dtype")
# Ways to run that switch checks off: measured, never recommended.
UNSAFE = "guards"

Word = Literal["keep compiled", "stay eager", "not enough evidence"]


_ADVICE = ("raise --", "close other programs", "cool down")  # what notes advise


@dataclass(frozen=True)
class Decision:
    word: Word
    text: str
    strategy: str | None = None
    variant: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.word}: {self.text}"


def name_of(row: Measurement) -> str:
    """`full`, `full (batch 4)`."""
    more = ", ".join(f"{key} {value}" for key, value in row.variant.items())
    return f"{row.strategy} ({more})" if more else row.strategy


def trouble(row: Measurement) -> str | None:
    """Why a row is not ranked: failed, skipped, not what it is called, or wrong."""
    if row.verdict == "skipped":
        return f"was skipped: {'; '.join(row.notes) or 'no reason given'}"
    if row.error:
        return f"failed: {row.error}"
    if row.verdict == "fell back":
        return next((n for n in row.notes if n.startswith(row.verdict)), row.verdict)
    if row.verdict == "not verified":
        why = (row.numerics or {}).get("why") or "its outputs could not be compared"
        return f"was not verified: {why}"
    if (row.numerics or {}).get("verdict") == "wrong" or row.verdict == "wrong":
        why = (row.numerics or {}).get("why")
        return f"gives wrong outputs: {why}" if why else "gives wrong outputs"
    if row.median_ms is not None:
        return None
    return f"was not measured{': ' + '; '.join(row.notes) if row.notes else ''}"


def decision(run: Run, thresholds: Thresholds | None = None) -> Decision:
    """For one run; where every row has a condition, each condition is asked."""
    limits = thresholds or Thresholds()
    groups: dict[str, list[Measurement]] = {}
    for row in run.measurements:
        said = [f"{k} {row.variant[k]}" for k in CONDITIONS if k in row.variant]
        groups.setdefault(", ".join(said), []).append(row)
    plain = groups.get("", [])
    if len(groups) <= 1 or any(row.strategy != "eager" for row in plain):
        return decide(plain or next(iter(groups.values()), []), limits)
    groups.pop("", None)
    return _over({name: decide(rows, limits) for name, rows in groups.items()})


def decide(rows: Sequence[Measurement], limits: Thresholds) -> Decision:
    """Among rows that were measured under the same conditions."""
    eager = next((row for row in rows if row.strategy == "eager"), None)
    compiled = [r for r in rows if r.strategy != "eager" and UNSAFE not in r.variant]
    if eager is None or eager.median_ms is None or trouble(eager):
        why = trouble(eager) if eager else None
        return Decision("not enough evidence", f"eager {why or 'was not measured'}")
    if not compiled:
        return Decision("not enough evidence", "only eager was measured")
    whole = [row for row in compiled if not trouble(row)]
    if not whole:
        told = "; ".join(f"{name_of(row)} {trouble(row)}" for row in compiled)
        return Decision("stay eager", f"no compiled strategy can be trusted: {told}")
    sound = [row for row in whole if row.vs_eager]
    if not sound:
        told = ", ".join(map(name_of, whole))
        return Decision("not enough evidence", f"not compared with eager: {told}")
    least = 1 + limits.speed / 100
    gaining = [r for r in sound if _gain(r) >= least and (r.vs_eager_low or 0) > 1]
    kept = [row for row in gaining if not _slower_tail(eager, row, limits)]
    if kept:
        return _keep(max(kept, key=_gain))
    if gaining:
        best = max(gaining, key=_gain)
        return Decision("stay eager", _tails(eager, best))
    open_ = [r for r in sound if _undecided(r, least)]
    if open_:
        return _unknown(max(open_, key=_gain), eager)
    best = max(sound, key=_gain)
    why = "" if _gain(best) < 1 else f", less than the {limits.speed:g} percent asked"
    rest = [
        f"{name_of(row)} {why_not}" for row in compiled if (why_not := trouble(row))
    ]
    told = "; ".join([f"the best, {name_of(best)}, is {_speed(best)}{why}", *rest])
    return Decision("stay eager", told)


def decide_pair(
    eager: Measurement, row: Measurement, limits: Thresholds
) -> Decision | None:
    """Eager of one run against the compiled row of another."""
    ratio = ratios.of_speed(eager, row)
    if ratio is None:
        return None
    first_s, eager_s = row.first_call_s, eager.first_call_s
    paid = stats.break_even(first_s, eager_s, eager.median_ms, ratio)
    joined = replace(
        row,
        vs_eager=ratio.value,
        vs_eager_low=ratio.low,
        vs_eager_high=ratio.high,
        break_even=paid.text if paid else None,
    )
    return decide([eager, joined], limits)


def _gain(row: Measurement) -> float:
    return row.vs_eager or 0.0


def _undecided(row: Measurement, least: float) -> bool:
    if row.vs_eager_low is None or row.vs_eager_high is None:
        return True
    return row.vs_eager_low <= 1 and row.vs_eager_high >= least


def _speed(row: Measurement) -> str:
    """`1.80x faster than eager (1.74 to 1.86)`; where slower, the times slower."""
    text = f"{in_words(_gain(row))} than eager"
    low, high = row.vs_eager_low, row.vs_eager_high
    if not low or not high:
        return text
    if _gain(row) < 1:
        low, high = 1 / high, 1 / low
    return f"{text} ({low:.2f} to {high:.2f})"


def _keep(row: Measurement) -> Decision:
    text = f"{name_of(row)} is {_speed(row)}"
    if row.break_even and row.break_even.startswith(("after", "at once")):
        text += f"; compiling has paid {row.break_even}"
    if row.numerics is None:
        text += "; its outputs were not compared with eager's"
    return Decision("keep compiled", text, row.strategy, row.variant)


def _slower_tail(eager: Measurement, row: Measurement, limits: Thresholds) -> bool:
    ratio = ratios.of_tail(eager, row)
    if ratio is None or ratio.verdict != "slower":
        return False
    return 1 / ratio.value >= 1 + limits.tail / 100


def _tails(eager: Measurement, row: Measurement) -> str:
    return (
        f"{name_of(row)} is {_speed(row)}, but one call in twenty takes"
        f" {row.p95_ms:.3g} ms or more, {eager.p95_ms:.3g} ms in eager"
    )


def _unknown(row: Measurement, eager: Measurement) -> Decision:
    """With what to try, as the measuring said it."""
    notes = dict.fromkeys((*row.notes, *eager.notes))
    said = [note.rstrip(".") for note in notes if any(w in note for w in _ADVICE)]
    todo = "; ".join(said) or "measure for longer, or on a quieter machine"
    text = f"{name_of(row)} is {_speed(row)}: a gain or none. To decide: {todo}"
    return Decision("not enough evidence", text)


def _over(decided: Mapping[str, Decision]) -> Decision:
    """One decision where all conditions agree, else which says what."""
    words = {found.word for found in decided.values()}
    first = next(iter(decided.values()))
    told = "; ".join(f"{name}: {found}" for name, found in decided.items())
    if len(words) == 1 and len({found.strategy for found in decided.values()}) == 1:
        told = "; ".join(f"{name}: {found.text}" for name, found in decided.items())
        return replace(first, text=told, variant={})
    if words == {"keep compiled"}:
        return Decision("keep compiled", told)
    return Decision("not enough evidence", f"it depends. {told}")
