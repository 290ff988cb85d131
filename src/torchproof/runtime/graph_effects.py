"""Python around graphs: `raise_if` and `in_graph` keep its effects in a graph.

Both become a custom operator without results. It runs when the graph runs, with the
values that the tensors have then. `on_host` keeps a function out of the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchproof import torch_private
from torchproof.runtime.operator_arguments import (
    named,
    packed,
    serial_number,
    unpacked,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., None]] = {}  # by module:qualified.name
# A CUDA graph cannot hold the operators: they read tensors on the host.
_TAGS = (torch.Tag.cudagraph_unsafe,)


def raise_if(
    condition: Tensor | bool,
    exception: type[Exception],
    message: str | None = None,
    *values: Any,
) -> None:
    """Raises an exception if a tensor is true, without a graph break.

    `values` are inserted into the message as `str.format` does; tensors among them are
    formatted only if the condition is true. Compiled code raises the same exception
    with the same message, when the graph runs.
    """
    if isinstance(condition, Tensor) and torch.compiler.is_compiling():
        tensors, integers, floats, layout = packed(values, other=_text)
        name = f"{exception.__module__}:{exception.__qualname__}"
        _raise_if(
            condition,
            name,
            tensors,
            integers,
            floats=floats,
            message=message,
            layout=layout,
        )
    elif condition:
        raise _exception(exception, message, values)


def in_graph(function: Callable[..., None]) -> Callable[..., None]:
    """A decorator for a function of a module that only has an effect, as print does.

    Compiled code calls the function when the graph runs, in place of a graph break. The
    arguments are tensors, which the function must not change, numbers, texts, None, and
    tuples, lists and dictionaries of those. The function returns nothing.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    _FUNCTIONS[name] = function

    @functools.wraps(function)
    def call(*arguments: Any) -> None:
        if torch.compiler.is_compiling():
            tensors, integers, floats, layout = packed(arguments, other=_unfit)
            _in_graph(
                name,
                tensors,
                integers,
                floats=floats,
                layout=layout,
                serial_number=serial_number(),
            )
        else:
            function(*arguments)

    return call


def on_host(function: _Function) -> _Function:
    """A decorator for a function that runs in Python, and calls what is compiled.

    `torch.compile` of it compiles the functions that it calls, each with a graph of its
    own. Without `torch.compile` it does nothing.
    """
    torch_private.switches.skip_frame_of(function)
    return function


def _exception(
    exception: type[Exception], message: str | None, values: Sequence[Any]
) -> Exception:
    if message is None:
        return exception()
    return exception(message.format(*values) if values else message)


# -- the operators ---------------------------------------------------------------------


@torch.library.custom_op("torchproof::raise_if", mutates_args=(), tags=_TAGS)
def _raise_if(
    condition: Tensor,
    exception: str,
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    *,
    floats: Sequence[float],
    message: str | None,
    layout: str,
) -> None:
    if condition:
        found = named(exception)
        values = unpacked(tensors, integers, floats, layout)
        raise _exception(found or RuntimeError, message, values)


@torch.library.custom_op("torchproof::in_graph", mutates_args=(), tags=_TAGS)
def _in_graph(
    name: str,
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    *,
    floats: Sequence[float],
    layout: str,
    serial_number: int,
) -> None:
    if name not in _FUNCTIONS:
        named(name)  # imports the module, which registers the function
    _FUNCTIONS[name](*unpacked(tensors, integers, floats, layout))


for _operator in (_raise_if, _in_graph):
    _operator.register_fake(lambda *_, **__: None)
# They return nothing: without this mark, passes over the graph remove them.
torch.fx.node.has_side_effect(torch.ops.torchproof.raise_if.default)
torch.fx.node.has_side_effect(torch.ops.torchproof.in_graph.default)


def _text(value: Any) -> str:
    return f"text {value}"


def _unfit(value: Any) -> str:
    raise TypeError(
        "a function in the graph takes tensors, numbers and texts, not"
        f" {type(value).__name__}"
    )
