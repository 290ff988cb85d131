"""The verdict on all answers of an arm, and which of them it hangs on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchproof.measure.numerics.agreement import Agreement, Verdict, agree, wrong

Answers = Mapping[str, Any]

# An answer that eager itself misses by half its size is nothing but rounding: its
# relative error says nothing about the others.
_ONLY_ROUNDING = 0.5


@dataclass(frozen=True)
class Numerics:
    """The verdict; None where it cannot be judged, with why.

    The errors are those of one answer, `where`, relative to its largest element: the
    most wrong one, else the one with the largest error.
    """

    verdict: Verdict | None
    max_rel_error: float | None = None
    eager_error: float | None = None
    reference: Literal["float64", "eager"] = "eager"
    where: str | None = None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def judge(
    answers: Answers,
    eager: Answers,
    exact: Answers | None = None,
    *,
    nudged: Callable[[], Sequence[Answers]] = tuple,
) -> Numerics:
    """Compares an arm's answers with eager's, excused by an exact reference.

    `nudged` gives the answers of eager runs on inputs a rounding away; it is asked only
    if something would be wrong otherwise.
    """
    found: dict[str, Agreement] = {}
    others: Sequence[Answers] | None = None
    for label in {**eager, **answers}:
        found[label] = _judge_one(label, answers, eager, exact or {})
        if _in_doubt(found[label]):
            others = nudged() if others is None else others
            found[label] = _judge_one(label, answers, eager, exact or {}, nudged=others)
    return _sum_up(found)


def _in_doubt(item: Agreement) -> bool:
    """More runs of eager could excuse it, or are all there is to tell its error."""
    if item.verdict == "wrong":
        return not item.final
    return item.verdict == "rounding" and item.reference == "eager"


def _judge_one(
    label: str,
    answers: Answers,
    eager: Answers,
    exact: Answers,
    *,
    nudged: Sequence[Answers] = (),
) -> Agreement:
    if label not in answers or label not in eager:
        return wrong("only eager gives it" if label in eager else "eager gives none")
    given, expected = answers[label], eager[label]
    if (difference := _different_form(given, expected)) is not None:
        return wrong(difference)
    if not isinstance(expected, (torch.Tensor, bool, int, float, complex)):
        if expected is not None and not isinstance(expected, str):
            return Agreement(None, why=f"{expected} cannot be compared")
        if given == expected:
            return Agreement("same", 0.0)
        return wrong(f"it is {given!r}, eager gives {expected!r}")
    kind = _kind(given, expected)
    a, e = _tensor(given, kind), _tensor(expected, kind)
    samples = [_fitting(other.get(label), e) for other in nudged]
    return agree(
        a.to(e.device),
        e,
        _fitting(exact.get(label), e),
        [sample for sample in samples if sample is not None],
    )


def _different_form(given: Any, expected: Any) -> str | None:
    """Another type, element type, shape or device, in words."""
    if not isinstance(given, torch.Tensor) or not isinstance(expected, torch.Tensor):
        names = [_type_name(value) for value in (given, expected)]
        if names[0] == names[1]:
            return None
        return f"it is of type {names[0]}, eager gives {names[1]}"
    for name in ("dtype", "shape", "device"):
        mine, others = getattr(given, name), getattr(expected, name)
        if mine != others:
            shown = [list(v) if name == "shape" else v for v in (mine, others)]
            return f"its {name} is {shown[0]}, eager gives {shown[1]}"
    return None


def _type_name(value: Any) -> str:
    return "Tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def _kind(given: Any, expected: Any) -> torch.dtype | None:
    """The type that Python floats were computed in, as far as their digits tell."""
    if not isinstance(expected, float):
        return None
    short = [float(torch.tensor(v, dtype=torch.float32)) for v in (given, expected)]
    same = all(
        mine == value or value != value
        for mine, value in zip(short, (given, expected), strict=True)
    )
    return torch.float32 if same else torch.float64


def _tensor(value: Any, kind: torch.dtype | None = None) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=kind)
    if value.is_nested:
        return value.to_padded_tensor(0)
    return value.to_dense() if value.layout is not torch.strided else value


def _fitting(value: Any, like: torch.Tensor) -> torch.Tensor | None:
    """A reference's answer, unless it is of another form than eager's."""
    if not isinstance(value, (torch.Tensor, bool, int, float, complex)):
        return None
    kind = torch.float64 if isinstance(value, float) else None
    tensor = _tensor(value, kind).to(like.device)
    alike = tensor.shape == like.shape and (
        tensor.is_floating_point() == like.is_floating_point()
        and tensor.is_complex() == like.is_complex()
    )
    return tensor if alike else None


def _sum_up(found: Mapping[str, Agreement]) -> Numerics:
    verdicts: tuple[Verdict | None, ...] = ("wrong", None, "rounding", "same")
    all_given = {item.verdict for item in found.values()}
    verdict = next((v for v in verdicts if v in all_given), None)
    if not found:
        return Numerics(None, why="the target gives no answers that can be compared")
    shown = [(k, item) for k, item in found.items() if item.verdict == verdict]
    if verdict == "wrong":
        where, worst = max(shown, key=lambda pair: pair[1].excess)
    elif verdict is None:
        where, worst = shown[0]
    else:
        where, worst = max(shown, key=lambda pair: _shown_error(pair[1]))
    exact = any(item.reference == "float64" for item in found.values())
    return Numerics(
        verdict,
        worst.error,
        worst.eager_error,
        reference="float64" if exact else "eager",
        where=where,
        why=worst.why,
    )


def _shown_error(item: Agreement) -> float:
    only_rounding = (item.eager_error or 0.0) > _ONLY_ROUNDING
    return -1.0 if item.error is None or only_rounding else item.error
