"""Python around graphs: `raise_if` and `in_graph` keep its effects in a graph.

Both become a custom operator without results. It runs when the graph runs, with the
values that the tensors have then. `on_host` keeps a function out of the graph.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchproof import torch_private

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., None]] = {}  # by module:qualified.name
_serial_numbers = itertools.count()
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
        tensors, integers, layout = _packed(values, other=str)
        name = f"{exception.__module__}:{exception.__qualname__}"
        _raise_if(
            condition,
            name,
            tensors,
            integers,
            message=message,
            layout=layout,
        )
    elif condition:
        raise _exception(exception, message, values)


def in_graph(function: Callable[..., None]) -> Callable[..., None]:
    """A decorator for a function of a module that only has an effect, as print does.

    Compiled code calls the function when the graph runs, in place of a graph break. The
    arguments are tensors, which the function must not change, numbers, texts, None, and
    tuples and lists of those. The function returns nothing.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    _FUNCTIONS[name] = function

    @functools.wraps(function)
    def call(*arguments: Any) -> None:
        if torch.compiler.is_compiling():
            tensors, integers, layout = _packed(arguments, other=_unfit)
            _in_graph(
                name,
                tensors,
                integers,
                layout=layout,
                serial_number=_serial_number(),
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


@torch.compiler.assume_constant_result
def _serial_number() -> int:
    """Another number in every call that is traced: equal calls are not merged."""
    return next(_serial_numbers)


# -- the operators ---------------------------------------------------------------------


@torch.library.custom_op("torchproof::raise_if", mutates_args=(), tags=_TAGS)
def _raise_if(
    condition: Tensor,
    exception: str,
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    *,
    message: str | None,
    layout: str,
) -> None:
    if condition:
        found = _named(exception)
        values = _unpacked(tensors, integers, layout)
        raise _exception(found or RuntimeError, message, values)


@torch.library.custom_op("torchproof::in_graph", mutates_args=(), tags=_TAGS)
def _in_graph(
    name: str,
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    *,
    layout: str,
    serial_number: int,
) -> None:
    if name not in _FUNCTIONS:
        _named(name)  # imports the module, which registers the function
    _FUNCTIONS[name](*_unpacked(tensors, integers, layout))


for _operator in (_raise_if, _in_graph):
    _operator.register_fake(lambda *_, **__: None)
# They return nothing: without this mark, passes over the graph remove them.
torch.fx.node.has_side_effect(torch.ops.torchproof.raise_if.default)
torch.fx.node.has_side_effect(torch.ops.torchproof.in_graph.default)


def _named(name: str) -> Any:
    """What `module:qualified.name` names; None if it cannot be found."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for word in path.split("."):
            found = getattr(found, word)
    except (ImportError, AttributeError):
        return None
    return found


# -- arguments: an operator takes tensors, integers and texts --------------------------


def _packed(
    values: Sequence[Any], other: Callable[[Any], str]
) -> tuple[list[Tensor], list[int], str]:
    tensors: list[Tensor] = []
    integers: list[int] = []
    layout: list[str] = []
    for value in values:
        _pack(value, tensors, integers, layout=layout, other=other)
    return tensors, integers, "\0".join(layout)


def _pack(
    value: Any,
    tensors: list[Tensor],
    integers: list[int],
    *,
    layout: list[str],
    other: Callable[[Any], str],
) -> None:
    if isinstance(value, Tensor):
        tensors.append(value)
        layout.append("tensor")
    elif value is None or isinstance(value, bool):
        layout.append(f"{value}")
    elif isinstance(value, (int, torch.SymInt)):
        integers.append(value)  # type: ignore[arg-type]
        layout.append("integer")
    elif isinstance(value, float):
        layout.append(f"number {value}")
    elif isinstance(value, str):
        layout.append(f"text {value}")
    elif isinstance(value, (tuple, list)):
        layout.append(f"{type(value).__name__} {len(value)}")
        for each in value:
            _pack(each, tensors, integers, layout=layout, other=other)
    elif isinstance(value, torch.dtype):
        layout.append(f"dtype {value}")
    elif isinstance(value, torch.device):
        layout.append(f"device {value}")
    else:
        layout.append(f"text {other(value)}")


def _unfit(value: Any) -> str:
    raise TypeError(
        "a function in the graph takes tensors, numbers and texts, not"
        f" {type(value).__name__}"
    )


_SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list, "Size": torch.Size}


def _unpacked(
    tensors: Sequence[Tensor], integers: Sequence[int], layout: str
) -> list[Any]:
    """The values in the order of the call."""
    entries = iter(layout.split("\0") if layout else ())
    given = iter(tensors), iter(integers)
    return [_unpack(entry, entries, *given) for entry in entries]


def _unpack(
    entry: str,
    entries: Iterator[str],
    tensors: Iterator[Tensor],
    integers: Iterator[int],
) -> Any:
    kind, _, rest = entry.partition(" ")
    if kind == "tensor":
        return next(tensors)
    if kind == "integer":
        return next(integers)
    if kind in _SEQUENCES:
        inside = [
            _unpack(next(entries), entries, tensors, integers) for _ in range(int(rest))
        ]
        return _SEQUENCES[kind](inside)
    if kind == "number":
        return float(rest)
    if kind == "text":
        return rest
    if kind == "dtype":
        return getattr(torch, rest.removeprefix("torch."))
    if kind == "device":
        return torch.device(rest)
    return {"None": None, "True": True, "False": False}[kind]
