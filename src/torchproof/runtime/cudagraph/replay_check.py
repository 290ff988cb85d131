"""Whether a replay answers as eager does: outputs and gradients, within tolerances."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchproof.runtime.tensors import compare
from torchproof.runtime.tensors.compare import ValueComparison


@dataclass(frozen=True)
class StepResult:
    """Copies of what a run returned and wrote, and of the gradients it left."""

    output: Mapping[str, Any]
    gradients: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, output: Any, written: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> StepResult:
        parts = compare.parts_of(output, "output")
        return cls(
            {label: _copy(part) for label, part in {**parts, **written}.items()},
            {label: _copy(each) for label, each in gradients.items()},
        )


def _copy(part: Any) -> Any:
    return part.detach().clone() if isinstance(part, Tensor) else part


def compared(
    given: StepResult, expected: StepResult, weights: Collection[Tensor]
) -> ValueComparison:
    """The worse of outputs and gradients; `weights` took part in computing them."""
    found = [
        _compared(given.output, expected.output, weights, gradients=False),
        _compared(given.gradients, expected.gradients, weights, gradients=True),
    ]
    order = ("same", "rounding", "wrong")
    return max(found, key=lambda one: (order.index(one.verdict), one.error or 0.0))


def _compared(
    given: Mapping[str, Any],
    expected: Mapping[str, Any],
    weights: Collection[Tensor],
    *,
    gradients: bool,
) -> ValueComparison:
    tensors = [each for each in expected.values() if isinstance(each, Tensor)]
    types = compare.types_in_use([*tensors, *weights], weights)
    allowed = compare.allowance(types, tensors, gradients=gradients)
    return compare.compare_parts(given, expected, allowed)
