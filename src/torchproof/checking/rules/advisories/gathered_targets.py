"""AD104: targets that are gathered over a batch of unknown size."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advisories.advisory import (
    Advisory,
    CapturedGraph,
    Trigger,
)

_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_VIEWS = frozenset({"unflatten", "view", "reshape"})


class GatheredTargets(Advisory):
    """A loss reads other targets than eager over a batch that is marked unbacked.

    ## Why
    Inductor on the CPU fuses the gather of the targets into the loss. If the size of
    the batch is unknown and the indices went through `unflatten`, the fused code reads
    other elements. Backend `aot_eager` is right.

    ## Bad
        mark_unbacked(entries, 0)
        ends = rows.unflatten(0, (-1, 3)).flatten(1)
        loss = F.cross_entropy(logits, tokens.gather(1, ends).flatten())

    ## Good
        mark_dynamic(entries, 0)

    ## Fix safety
    With `mark_dynamic`, batches of 1 are compiled apart.
    """

    code = "AD104"
    problem = "wrong_targets_unbacked"
    reference = torch_pages.DYNAMIC_SHAPES
    message_text = (
        "`{at.expression}` can read other targets than eager over a batch marked"
        " unbacked"
    )
    cause_text = (
        "Inductor of {torch} on the CPU computes wrong indices for a gather whose"
        " indices are views of an unknown size ({view})"
    )

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        if not graph.uses_inductor:
            return
        for loss in graph.operations:
            if loss.name in _LOSSES and loss.device == "cpu" and len(loss.inputs) > 1:
                for view in self._views_of_unknown_size(graph, loss.inputs[1]):
                    yield Trigger(loss, {"view": f"`{view}`"})
                    break

    def _views_of_unknown_size(
        self, graph: CapturedGraph, targets: int
    ) -> Iterator[str]:
        """The views behind the indices of a gather that the targets come from."""
        for position in sorted(graph.reaches(targets)):
            gather = graph.operations[position]
            if gather.name != "gather" or len(gather.inputs) < 2:
                continue
            for behind in sorted(graph.reaches(gather.inputs[-1])):
                view = graph.operations[behind]
                if view.name in _VIEWS and None in view.shape:
                    yield view.name
