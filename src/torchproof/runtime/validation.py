"""`raise_if`: a check of a tensor's value that torch.compile keeps in the graph."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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
        _raise_in_graph(condition, exception, message, values)
    elif condition:
        raise _exception(exception, message, values)


def _exception(
    exception: type[Exception], message: str | None, values: Sequence[Any]
) -> Exception:
    if message is None:
        return exception()
    return exception(message.format(*values) if values else message)


def _raise_in_graph(
    condition: Tensor,
    exception: type[Exception],
    message: str | None,
    values: Sequence[Any],
) -> None:
    """Adds the check to the graph; an operator takes tensors, integers and texts."""
    tensors: list[Tensor] = []
    integers: list[int] = []
    layout: list[str] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            layout.append("tensor")
        elif isinstance(value, torch.Size):
            integers.extend(value)
            layout.append(f"size {len(value)}")
        elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            integers.append(value)
            layout.append("integer")
        elif isinstance(value, float):
            layout.append(f"number {value}")
        else:
            layout.append(f"text {value}")
    _raise_if(
        condition,
        f"{exception.__module__}:{exception.__qualname__}",
        message,
        tensors,
        integers,
        "\0".join(layout),
    )


# A CUDA graph cannot hold the operator: it reads the condition on the host.
@torch.library.custom_op(
    "torchproof::raise_if",
    mutates_args=(),
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _raise_if(
    condition: Tensor,
    exception: str,
    message: str | None,
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    layout: str,
) -> None:
    if condition:
        values = _values(layout, tensors, integers)
        raise _exception(_class(exception), message, values)


@_raise_if.register_fake
def _(*_: object) -> None:
    return None


# The operator returns nothing: without this mark, passes over the graph remove it.
torch.fx.node.has_side_effect(torch.ops.torchproof.raise_if.default)


def _values(
    layout: str, tensors: Sequence[Tensor], integers: Sequence[int]
) -> list[Any]:
    """The values of a message, in the order of the call."""
    remaining_tensors, remaining_integers = iter(tensors), iter(integers)
    values: list[Any] = []
    for each in layout.split("\0") if layout else ():
        kind, _, rest = each.partition(" ")
        if kind == "tensor":
            values.append(next(remaining_tensors))
        elif kind == "integer":
            values.append(next(remaining_integers))
        elif kind == "size":
            values.append(
                torch.Size(next(remaining_integers) for _ in range(int(rest)))
            )
        elif kind == "number":
            values.append(float(rest))
        else:
            values.append(rest)
    return values


def _class(name: str) -> type[Exception]:
    """The class of `module:qualified.name`; RuntimeError if it cannot be found."""
    module, _, path = name.partition(":")
    try:
        found: Any = (
            builtins if module == "builtins" else importlib.import_module(module)
        )
        for word in path.split("."):
            found = getattr(found, word)
    except (ImportError, AttributeError):
        return RuntimeError
    return found if issubclass(found, Exception) else RuntimeError
