"""AD106: a float that varies, in the value of a ternary operation."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advisories.advisory import (
    Advisory,
    CapturedGraph,
    Trigger,
)

_WITH_VALUE = frozenset({"addcdiv", "addcdiv_", "addcmul", "addcmul_"})


class StaleFloat(Advisory):
    """`addcdiv` and `addcmul` keep the value that a float had when it was compiled.

    ## Why
    Inductor turns floats that vary into tensors. Where it cannot, as in the `value` of
    `addcdiv` and `addcmul`, it makes the float a constant. If the same float is also
    used elsewhere in the graph, the guard on the constant is lost: later calls compute
    with the old value. Optimizers written by hand have this pattern.

    ## Bad
        step = step_tensor.item()
        denominator = (v.sqrt() / (1 - 0.999**step) ** 0.5).add_(eps)
        parameter.addcdiv_(m, denominator, value=-lr / (1 - 0.9**step))

    ## Good
        size = lr / (1 - 0.9**step_tensor)      # a tensor
        parameter.sub_(size * m / denominator)

    ## Fix safety
    Results agree up to rounding.
    """

    code = "AD106"
    problem = "stale_floats"
    suspects = "stale_state"
    reference = torch_pages.RATES
    message_text = (
        "`{at.expression}` can compute with an old value of the float in"
        " {name}(value=...)"
    )
    cause_text = (
        "Inductor of {torch} makes the float a constant here and a tensor elsewhere,"
        " and drops the guard on it"
    )

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        if not graph.uses_inductor:
            return
        read = {i for i, each in enumerate(graph.operations) if each.name == "item"}
        for operation in graph.operations:
            if operation.name in _WITH_VALUE:
                sources = self._floats(graph, operation.inputs) & read
                if sources and self._used_elsewhere(graph, sources):
                    yield Trigger(operation, {"name": operation.name})

    def _floats(self, graph: CapturedGraph, inputs: tuple[int, ...]) -> set[int]:
        """Everything that the floats among some inputs are computed from."""
        floats = [i for i in inputs if graph.operations[i].result == "float"]
        return {position for i in floats for position in graph.reaches(i)}

    def _used_elsewhere(self, graph: CapturedGraph, sources: set[int]) -> bool:
        """Whether another operation on tensors uses one of these floats."""
        return any(
            each.result == "tensor"
            and each.name not in _WITH_VALUE
            and self._floats(graph, each.inputs) & sources
            for each in graph.operations
        )
