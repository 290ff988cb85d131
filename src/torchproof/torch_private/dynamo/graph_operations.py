"""The operations of a graph that Dynamo captured, as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from torchproof.records import INPUT
from torchproof.torch_private.dynamo.captured_graphs import higher_order_name

# The fields of `Operation` in their order, with the position of its stack at the end.
Row = tuple[str, list[int], list[float], str, list[int | None], str, bool, str, int]


@dataclass
class GraphOperations:
    """The operations in order; each names its stack by its position in `stacks`."""

    rows: list[Row] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, graph: fx.GraphModule) -> GraphOperations:
        found = cls()
        found._walk(graph, ())
        return found

    def _walk(self, graph: fx.GraphModule, operands: Sequence[int]) -> None:
        """Adds the operations; the placeholders of a part stand for its operands."""
        known: dict[fx.Node, int] = {}
        given = iter(operands)
        for node in graph.graph.nodes:
            if node.op == "placeholder" and (at := next(given, None)) is not None:
                known[node] = at
            elif node.op not in ("get_attr", "output"):
                inputs = [
                    i for each in _operands(node) if (i := known.get(each)) is not None
                ]
                known[node] = len(self.rows)
                parts = _parts(graph, node)
                self._add(node, inputs, parts)
                for part in parts.values():
                    self._walk(part, _last(inputs, _placeholders(part)))

    def _add(
        self, node: fx.Node, inputs: list[int], parts: dict[str, fx.GraphModule]
    ) -> None:
        value = node.meta.get("example_value")
        tensor = value if isinstance(value, torch.Tensor) else None
        self.rows.append(
            (
                _name(node),
                inputs,
                list(_numbers((node.args, node.kwargs))),
                _type(value),
                [] if tensor is None else [_size(size) for size in tensor.shape],
                "" if tensor is None else tensor.device.type,
                tensor is not None and tensor.requires_grad,
                " ".join(parts),
                self._stack(node.stack_trace or ""),
            )
        )

    def _stack(self, text: str) -> int:
        # Neighbours share their stack, so the last one is usually the right one.
        if not self.stacks or self.stacks[-1] != text:
            self.stacks.append(text)
        return len(self.stacks) - 1


def _name(node: fx.Node) -> str:
    if node.op == "placeholder":
        return INPUT
    if isinstance(node.target, str):
        return node.target.rpartition(".")[2]
    name = higher_order_name(node.target) or getattr(node.target, "__name__", "")
    return name or str(node.target)


def _parts(graph: fx.GraphModule, node: fx.Node) -> dict[str, fx.GraphModule]:
    """The parts of the graph that an operator calls, by their names."""
    if higher_order_name(node.target) is None:
        return {}
    names = [str(i.target) for i in node.all_input_nodes if i.op == "get_attr"]
    found = {name: getattr(graph, name, None) for name in names}
    return {k: part for k, part in found.items() if isinstance(part, fx.GraphModule)}


def _placeholders(part: fx.GraphModule) -> int:
    return sum(node.op == "placeholder" for node in part.graph.nodes)


def _last(operands: Sequence[int], number: int) -> Sequence[int]:
    """The operands that an operator passes to a part: they come last."""
    return operands[len(operands) - number :] if number <= len(operands) else ()


def _operands(node: fx.Node) -> list[fx.Node]:
    """The nodes among the arguments, in their order, as often as they occur."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _numbers(arguments: Any) -> Iterator[float]:
    if isinstance(arguments, bool):
        return
    if isinstance(arguments, (int, float)):
        if math.isfinite(arguments):
            yield arguments
    elif isinstance(arguments, dict):
        yield from _all(arguments.values())
    elif isinstance(arguments, (tuple, list)):
        yield from _all(arguments)


def _all(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        yield from _numbers(value)


def _type(value: Any) -> str:
    types: dict[str, Any] = {
        "tensor": torch.Tensor,
        "float": (float, torch.SymFloat),
        "int": (int, torch.SymInt),
    }
    fitting = (name for name, kind in types.items() if isinstance(value, kind))
    return next(fitting, "other")


def _size(size: Any) -> int | None:
    """The size in this call; None if it is unbacked."""
    if isinstance(size, int):
        return size
    if has_free_unbacked_symbols(size):
        return None
    return size.node.hint if isinstance(size.node.hint, int) else None
