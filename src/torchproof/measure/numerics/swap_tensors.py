"""The tensors a target holds, given other values for a while.

Comes in: the target's function and its calls. Every floating-point tensor that can be
reached from them (parameters, buffers, inputs, caches, closures, globals its code
names) holds converted values inside `holding`, and its own again afterwards. Tensors
stay the same objects and go on sharing memory as before.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

_MOST_OBJECTS = 200_000
_LEAVES = (str, bytes, int, float, complex, type, types.ModuleType, torch.Generator)


@contextlib.contextmanager
def holding(
    roots: Any, convert: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """`convert` gets the memory of each storage, flat; the result may have any type."""
    memory: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
    try:
        for tensor in reachable(roots):
            if not _can_change(tensor):
                continue
            storage = tensor.untyped_storage()
            key = (storage.data_ptr(), tensor.dtype)
            if key not in memory:
                flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                memory[key] = convert(flat.set_(storage))
            own, gradient = tensor.data, tensor.grad if tensor.is_leaf else None
            before.append((tensor, own, gradient))
            shape = (own.size(), own.stride(), own.storage_offset())
            _hold(tensor, memory[key].as_strided(*shape), gradient)
        yield
    finally:
        for tensor, own, gradient in reversed(before):
            _hold(tensor, own, gradient)


def _hold(
    tensor: torch.Tensor, values: torch.Tensor, gradient: torch.Tensor | None
) -> None:
    """A gradient has the type of its tensor, so it goes before and comes after."""
    if tensor.is_leaf:
        tensor.grad = None
    tensor.data = values
    if gradient is not None:
        tensor.grad = gradient.to(values.dtype)


def _can_change(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.numel() > 0
        and not (tensor.is_conj() or tensor.is_neg())
    )


def reachable(root: Any) -> Iterator[torch.Tensor]:
    """The tensors an object holds, through what a user's program is made of."""
    waiting: list[Any] = [root]
    seen: dict[int, Any] = {}
    while waiting and len(seen) < _MOST_OBJECTS:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen[id(value)] = value  # kept, so that no other object gets its address
        if isinstance(value, torch.Tensor):
            yield value
        else:
            waiting.extend(_held(value))


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.FunctionType):
        yield from _held_by_function(value)
    elif isinstance(value, types.CellType):
        with contextlib.suppress(ValueError):  # not yet assigned
            yield value.cell_contents
    if not isinstance(value, types.FunctionType):
        yield from getattr(value, "__dict__", {}).values()
    for name in getattr(type(value), "__slots__", ()):
        if isinstance(name, str):
            yield getattr(value, name, None)


def _held_by_function(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__closure__ or ()
    yield from function.__defaults__ or ()
    yield getattr(function, "__wrapped__", None)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, (torch.Tensor, torch.nn.Module, dict, list)):
            yield value
