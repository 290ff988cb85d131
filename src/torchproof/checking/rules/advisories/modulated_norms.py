"""AD101: gradients of a scale and shift that several norms share."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torchproof.checking.rules.advisories.advisory import (
    Advisory,
    AdvisoryGroup,
    CapturedGraph,
    Trigger,
)
from torchproof.records import Operation, Setting

_NORMS = frozenset({"layer_norm", "rms_norm"})
_SLICES = frozenset({"chunk", "split", "tensor_split"})
# The sizes from which Inductor fuses reductions over rows with those over columns.
_ROWS, _ELEMENTS, _MOST_COLUMNS = 4096, 5 * 2**20, 16 * 1024


class ModulatedNorms(Advisory):
    """Gradients of slices that scale and shift several norms are never written.

    ## Why
    Since torch 2.10, Inductor fuses reductions over rows and columns on a GPU. If the
    gradients of the slices of one tensor are such reductions, it forgets to write some
    of them: they hold whatever was in the memory before. DiT, AdaLN and Wan have this
    pattern. Only large inputs are affected: at least 4096 rows, 5 * 2**20 elements, and
    twice as many rows as columns.

    ## Bad
        a, b, c, d = self.table.chunk(4, dim=1)
        x = x + F.layer_norm(x, [n]) * (1 + a) + b
        x = x + F.layer_norm(x, [n]) * (1 + c) + d

    ## Good
        a, b, c, d = self.table.unbind(1)      # or TORCHINDUCTOR_MIX_ORDER_REDUCTION=0

    ## Fix safety
    The setting only switches off a fusion. `unbind` gives the same slices without the
    dimension of size 1.
    """

    code = "AD101"
    problem = "modulated_norms"
    message_text = (
        "gradients of {slices}, which scales and shifts several norms, can be garbage"
    )
    cause_text = (
        "Inductor of {torch} fuses reductions over rows and columns ({rows} rows of"
        " {columns}), and leaves part of the gradient unwritten"
    )

    def setting(self, group: AdvisoryGroup) -> Setting | None:
        return Setting("inductor.triton.mix_order_reduction", False)

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        if not (graph.on_gpu and graph.uses_inductor and graph.event.backwards):
            return
        switch = "TORCHINDUCTOR_MIX_ORDER_REDUCTION"
        if graph.setting("triton.mix_order_reduction", switch) == "False":
            return
        shared: dict[int, list[int]] = {}
        for position, operation in enumerate(graph.operations):
            if operation.name in _NORMS and _is_large(operation):
                for sliced in _modulations(graph, position):
                    shared.setdefault(sliced, []).append(position)
        for sliced, norms in shared.items():
            chained = [n for n in norms if graph.reaches(n) & set(norms) - {n}]
            for last in chained[-1:]:
                norm = graph.operations[last]
                *rows, columns = norm.shape
                yield Trigger(
                    norm,
                    {
                        "slices": f"`{graph.operations[sliced].name}()`",
                        "rows": prod(each or 0 for each in rows),
                        "columns": columns,
                    },
                )


def _is_large(norm: Operation) -> bool:
    *sizes, columns = norm.shape or (0,)
    if None in sizes or not columns or norm.device != "cuda":
        return False
    rows = prod(size for size in sizes if size is not None)
    return (
        rows >= max(_ROWS, 2 * columns)
        and rows * columns >= _ELEMENTS
        and columns <= _MOST_COLUMNS
    )


def _modulations(graph: CapturedGraph, norm: int) -> Iterator[int]:
    """The sliced tensors that scale or shift a norm, the same for all its rows."""
    columns = graph.operations[norm].shape[-1]
    results = {norm}
    found: set[int] = set()
    for position, operation in enumerate(graph.operations):
        if operation.name not in ("mul", "add") or not results & set(operation.inputs):
            continue
        results.add(position)
        for other in set(operation.inputs) - results:
            by = graph.operations[other]
            if by.needs_gradient and by.shape and prod(map(int, _known(by))) == columns:
                found |= {
                    each
                    for each in graph.reaches(other)
                    if graph.operations[each].name in _SLICES
                }
    yield from sorted(found)


def _known(operation: Operation) -> tuple[int, ...]:
    return tuple(-1 if size is None else size for size in operation.shape)
