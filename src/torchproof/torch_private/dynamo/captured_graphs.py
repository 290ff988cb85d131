"""Graphs that Dynamo passes to a backend, their targets, and torch's FX minifier."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torchproof.torch_private import contract
from torchproof.torch_private.dynamo import subgraphs
from torchproof.torch_private.hooks import patched

Backend = Callable[[fx.GraphModule, str], Callable[..., Any]]


@contextlib.contextmanager
def replace_backends(run: Backend) -> Iterator[None]:
    """Uses `run(graph, compile_id)` in place of the backend."""
    contract.require("repro")
    owner = importlib.import_module("torch._dynamo.output_graph").OutputGraph
    original = owner._call_user_compiler

    @functools.wraps(original)
    def compile_graph(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        backend = self.compiler_fn
        self.compiler_fn = lambda graph, _: run(graph, str(self.dynamo_compile_id))
        try:
            return original(self, gm, *args, **kwargs)
        finally:
            self.compiler_fn = backend

    with patched(owner, "_call_user_compiler", compile_graph):
        yield


def run_as_captured(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend that runs the captured graph, and a backward through its regions."""
    forward: Callable[..., Any] = subgraphs.without_regions(graph).forward
    return forward


@contextlib.contextmanager
def no_code_generation() -> Iterator[None]:
    """Makes Inductor run the captured graph without compiling it."""

    def run(self: Any, model_: Any, inputs_: Any) -> Any:
        return run_as_captured(model_, inputs_)

    with patched(torch._TorchCompileInductorWrapper, "__call__", run):
        yield


def qualified_name(target: Any) -> str:
    """The dotted name of a function that a graph calls."""
    return importlib.import_module("torch.fx.node")._get_qualified_name(target)


def higher_order_name(target: Any) -> str | None:
    """The name of a higher-order operator; None for any other target."""
    kind = importlib.import_module("torch._ops").HigherOrderOperator
    return target.name() if isinstance(target, kind) else None


def operator_name(target: Any) -> str | None:
    """The name of an operator, such as `aten.add.Tensor`; None for other targets."""
    ops = importlib.import_module("torch._ops")
    if isinstance(target, ops.OpOverload):
        return str(target)
    if isinstance(target, ops.OpOverloadPacket):
        return str(target)
    return None


def is_wrapped(tensor: Any) -> bool:
    """Whether functorch wraps the tensor, as inside `vmap`."""
    functorch: Any = importlib.import_module("torch._C._functorch")
    return bool(functorch.is_functorch_wrapped_tensor(tensor))


def minify(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    fails: Callable[[fx.GraphModule, Sequence[Any]], bool],
) -> None:
    """Runs torch's minifier, which passes each smaller graph to `fails`.

    Its output on stderr is dropped.
    """
    tool = importlib.import_module("torch._functorch.fx_minifier")
    with contextlib.redirect_stderr(io.StringIO()):
        tool.minifier(gm, list(inputs), fails, dump_state=lambda *_: None)
