"""Nested compile regions: subgraphs that torch compiles once and calls many times.

From torch 2.13 on, a region that is called once is inlined into the graph. The graph
still lists it.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from torchproof.torch_private.hooks import patched


@dataclass(frozen=True)
class Subgraph:
    """A region: the ids of its nested `modules`, and its `inputs` (shape and dtype)."""

    modules: frozenset[int]
    inputs: tuple[Any, ...]


def each_graph(note: Callable[[list[Subgraph]], None]) -> AbstractContextManager[None]:
    """Calls `note(subgraphs)` for each graph with subgraphs that goes to a backend."""
    output_graph = importlib.import_module("torch._dynamo.output_graph")
    original = output_graph.OutputGraph._call_user_compiler

    @functools.wraps(original)
    def compile_graph(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        parts = [part for part in gm.children() if isinstance(part, fx.GraphModule)]
        if parts:
            note(list(map(_subgraph, parts)))
        return original(self, gm, *args, **kwargs)

    return patched(output_graph.OutputGraph, "_call_user_compiler", compile_graph)


def _subgraph(part: fx.GraphModule) -> Subgraph:
    modules: set[int] = set()
    inputs = []
    for node in part.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("example_value")
            if isinstance(value, Tensor):
                inputs.append((tuple(map(str, value.shape)), value.dtype))
        # The keys are the ids of the modules, as text.
        stack = node.meta.get("nn_module_stack") or {}
        modules |= {int(key) for key in stack if str(key).isdecimal()}
    return Subgraph(frozenset(modules), tuple(inputs))


def without_regions(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with its regions as plain calls, or itself if it has none.

    In eager mode torch can run the forward of a region, but not its backward.
    """
    if not any(isinstance(part, fx.GraphModule) for part in gm.children()):
        return gm
    ops = importlib.import_module("torch._higher_order_ops.invoke_subgraph")
    region = ops.invoke_subgraph
    if not any(node.target is region for node in gm.graph.nodes):
        return gm
    plain = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    for node in plain.graph.nodes:
        if node.target is region:
            node.target = _called
    for name, part in [*plain.named_children()]:
        if isinstance(part, fx.GraphModule):  # regions may be nested
            setattr(plain, name, without_regions(part))
    plain.recompile()
    return plain


def _called(subgraph: Any, identifier: Any, *operands: Any) -> Any:
    return forward_of(subgraph)(*operands)


def forward_of(compiled: Any) -> Any:
    """The forward of a graph module, with its code generated; else the argument itself.

    Before its code is generated, a graph's forward calls the graph as a module. That is
    slower, and global module hooks see it.
    """
    from torch.fx._lazy_graph_module import _LazyGraphModule

    graph = getattr(compiled, "__self__", compiled)
    if not isinstance(graph, fx.GraphModule):
        return compiled
    _LazyGraphModule.force_recompile(graph)
    return graph.forward
