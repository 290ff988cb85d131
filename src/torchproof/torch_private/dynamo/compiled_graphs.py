"""Compiled graphs as Dynamo installs them: their nodes, and a way to wrap them.

Dynamo calls a graph through a global name of the compiled function's module. So a timer
can replace it for a while. Without a timer, compiled code runs unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torchproof.records import Namespace
from torchproof.torch_private.hooks import patched


@dataclass(frozen=True)
class Node:
    """One operation of a graph: its stack when traced, and its modules."""

    target: str
    stack: str | None
    modules: tuple[tuple[str, str], ...]  # (path, class), outermost first


@dataclass(frozen=True)
class CompiledGraph:
    """One graph that the backend compiled, and its global name."""

    compile_id: str
    code: CodeType
    break_stack: tuple[tuple[str, int, str], ...]  # empty if no break ended the graph
    nodes: tuple[Node, ...]
    backend_s: float
    scope: Namespace
    name: str


@contextlib.contextmanager
def compiled_graphs(note: Callable[[CompiledGraph], None]) -> Iterator[None]:
    """Calls `note(graph)` for each graph after the backend has compiled it."""
    owner = importlib.import_module("torch._dynamo.output_graph").OutputGraph
    original = owner._call_user_compiler

    @functools.wraps(original)
    def compile_graph(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        nodes = _nodes(gm)  # the backend may change the graph
        started = time.perf_counter()
        compiled = original(self, gm, *args, **kwargs)
        seconds = time.perf_counter() - started
        note(
            CompiledGraph(
                compile_id=str(self.dynamo_compile_id),
                code=self.root_tx.f_code,
                break_stack=_break_stack(self.compile_subgraph_reason),
                nodes=nodes,
                backend_s=seconds,
                scope=self.global_scope,
                name=gm.meta["backend_id"],
            )
        )
        return compiled

    with patched(owner, "_call_user_compiler", compile_graph):
        yield


def _nodes(gm: Any) -> tuple[Node, ...]:
    return tuple(
        Node(
            str(node.target),
            node.stack_trace,
            tuple(
                (path, getattr(kind, "__name__", str(kind)))
                for path, kind in node.meta.get("nn_module_stack", {}).values()
            ),
        )
        for node in gm.graph.nodes
        if node.op.startswith("call_")
    )


def _break_stack(reason: Any) -> tuple[tuple[str, int, str], ...]:
    if reason is None or not reason.graph_break:
        return ()
    return tuple((f.filename, f.lineno, f.name) for f in reason.user_stack)


@contextlib.contextmanager
def replaced(
    graph: CompiledGraph, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replaces a graph by `wrap(compiled)`, and restores it afterwards."""
    compiled = graph.scope.get(graph.name)
    if compiled is None:  # Dynamo was reset
        yield
        return
    graph.scope[graph.name] = wrap(compiled)
    try:
        yield
    finally:
        if graph.name in graph.scope:
            graph.scope[graph.name] = compiled


@contextlib.contextmanager
def entered(
    contexts: Sequence[Any], enter: Callable[[], Callable[[], None]]
) -> Iterator[None]:
    """Calls `enter()` when a function compiled in one of these contexts is called.

    The function that `enter` returns is called when that call ends.
    """
    for context in contexts:
        context.enter_exit_hooks.append(enter)
    try:
        yield
    finally:
        for context in contexts:
            context.enter_exit_hooks.remove(enter)
