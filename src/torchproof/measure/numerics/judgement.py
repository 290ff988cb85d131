"""Reaches the verdict on all outputs of a strategy, and names the decisive one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchproof.measure.numerics.agreement import Agreement, Verdict, agree, wrong

Answers = Mapping[str, Any]

# If eager's own error is half the size of an output, the output is only rounding noise
# and its relative error tells nothing.
_ONLY_ROUNDING = 0.5


@dataclass(frozen=True)
class Numerics:
    """The verdict; None, with a reason, if the outputs cannot be judged.

    The errors are those of one output, `where`, relative to its largest element: the
    most wrong output, else the one with the largest error.
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
    perturbed: Callable[[], Sequence[Answers]] = tuple,
) -> Numerics:
    """Compares outputs with eager's; an exact reference may excuse differences.

    `perturbed` returns the outputs of eager runs whose inputs differ by a rounding. It
    is only called if an output would be wrong otherwise.
    """
    agreements: dict[str, Agreement] = {}
    others: Sequence[Answers] | None = None
    for label in {**eager, **answers}:
        agreements[label] = _judge_one(label, answers, eager, exact or {})
        if _in_doubt(agreements[label]):
            others = perturbed() if others is None else others
            agreements[label] = _judge_one(
                label, answers, eager, exact or {}, perturbed=others
            )
    return _sum_up(agreements)


def _in_doubt(item: Agreement) -> bool:
    """Whether more runs of eager could excuse it, or are needed to know its error."""
    if item.verdict == "wrong":
        return not item.final
    return item.verdict == "rounding" and item.reference == "eager"


def _judge_one(
    label: str,
    answers: Answers,
    eager: Answers,
    exact: Answers,
    *,
    perturbed: Sequence[Answers] = (),
) -> Agreement:
    if label not in answers or label not in eager:
        return wrong("only eager gives it" if label in eager else "eager gives none")
    output, expected = answers[label], eager[label]
    if (difference := _different_form(output, expected)) is not None:
        return wrong(difference)
    if not isinstance(expected, (torch.Tensor, bool, int, float, complex)):
        if expected is not None and not isinstance(expected, str):
            return Agreement(None, why=f"{expected} cannot be compared")
        if output == expected:
            return Agreement("same", 0.0)
        return wrong(f"it is {output!r}, eager gives {expected!r}")
    kind = _kind(output, expected)
    a, e = _tensor(output, kind), _tensor(expected, kind)
    samples = [_fitting(other.get(label), e) for other in perturbed]
    return agree(
        a.to(e.device),
        e,
        _fitting(exact.get(label), e),
        [sample for sample in samples if sample is not None],
    )


def _different_form(output: Any, expected: Any) -> str | None:
    """Returns how type, dtype, shape or device differ, or None."""
    if not isinstance(output, torch.Tensor) or not isinstance(expected, torch.Tensor):
        names = [_type_name(value) for value in (output, expected)]
        if names[0] == names[1]:
            return None
        return f"it is of type {names[0]}, eager gives {names[1]}"
    for name in ("dtype", "shape", "device"):
        own, eager = getattr(output, name), getattr(expected, name)
        if own != eager:
            values = [list(v) if name == "shape" else v for v in (own, eager)]
            return f"its {name} is {values[0]}, eager gives {values[1]}"
    return None


def _type_name(value: Any) -> str:
    return "Tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def _kind(output: Any, expected: Any) -> torch.dtype | None:
    """Guesses from their digits in which dtype Python floats were computed."""
    if not isinstance(expected, float):
        return None
    short = [float(torch.tensor(v, dtype=torch.float32)) for v in (output, expected)]
    same = all(
        rounded == value or value != value
        for rounded, value in zip(short, (output, expected), strict=True)
    )
    return torch.float32 if same else torch.float64


def _tensor(value: Any, kind: torch.dtype | None = None) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=kind)
    if value.is_nested:
        return value.to_padded_tensor(0)
    return value.to_dense() if value.layout is not torch.strided else value


def _fitting(value: Any, like: torch.Tensor) -> torch.Tensor | None:
    """Returns a reference output as a tensor, if its shape and kind match eager's."""
    if not isinstance(value, (torch.Tensor, bool, int, float, complex)):
        return None
    kind = torch.float64 if isinstance(value, float) else None
    tensor = _tensor(value, kind).to(like.device)
    alike = tensor.shape == like.shape and (
        tensor.is_floating_point() == like.is_floating_point()
        and tensor.is_complex() == like.is_complex()
    )
    return tensor if alike else None


def _sum_up(agreements: Mapping[str, Agreement]) -> Numerics:
    verdicts: tuple[Verdict | None, ...] = ("wrong", None, "rounding", "same")
    reached = {item.verdict for item in agreements.values()}
    verdict = next((v for v in verdicts if v in reached), None)
    if not agreements:
        return Numerics(None, why="the target has no outputs that can be compared")
    candidates = [
        (k, item) for k, item in agreements.items() if item.verdict == verdict
    ]
    if verdict == "wrong":
        where, worst = max(candidates, key=lambda pair: pair[1].excess)
    elif verdict is None:
        where, worst = candidates[0]
    else:
        where, worst = max(candidates, key=lambda pair: _shown_error(pair[1]))
    exact = any(item.reference == "float64" for item in agreements.values())
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
