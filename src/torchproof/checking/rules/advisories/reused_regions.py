"""AD103: gradients through a nested region that is called again."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advisories.advisory import (
    Advisory,
    CapturedGraph,
    Trigger,
)

_REGION = "invoke_subgraph"


class ReusedRegion(Advisory):
    """Gradients through a nested region that is called several times are wrong.

    ## Why
    Inductor compiles the backward of a `nested_compile_region` once. It may overwrite
    an input there that a later use of the same code still needs. Outputs are right, and
    so are the gradients of backend `aot_eager`.

    ## Bad
        @torch.compiler.nested_compile_region
        def block(x, weight): ...

        for weight in weights:
            x = block(x, weight)
        x.sum().backward()

    ## Good
        def block(x, weight): ...              # not a region

    ## Fix safety
    Without the decorator, torch generates code for each call: compiling takes longer.
    """

    code = "AD103"
    problem = "reused_regions"
    reference = torch_pages.REGIONS
    message_text = (
        "gradients through `{at.expression}` can be wrong: it calls one nested region"
        " {times} times"
    )
    cause_text = (
        "Inductor of {torch} generates the backward of the region once, and lets it"
        " overwrite inputs that a later use needs"
    )
    advice_text = (
        "call the code without torch.compiler.nested_compile_region where gradients are"
        " computed"
    )

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        if not (graph.uses_inductor and graph.event.backwards):
            return
        calls: dict[str, list[int]] = {}
        for position, operation in enumerate(graph.operations):
            if operation.name == _REGION:
                calls.setdefault(operation.part, []).append(position)
        for positions in calls.values():
            last = positions[-1]
            if graph.reaches(last) & set(positions[:-1]):
                yield Trigger(graph.operations[last], {"times": len(positions)})
