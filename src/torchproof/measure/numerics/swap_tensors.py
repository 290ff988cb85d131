"""Swaps the values of a target's tensors for a while.

Takes the target's function and its calls. Inside `swapped_values`, every floating-point
tensor that is reachable from them (parameters, buffers, inputs, caches, closures,
globals that the code names) has converted values; afterwards it has its own again.
Tensors stay the same objects and share memory as before.
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


class TooManyObjects(Exception):
    """Not all tensors of a target could be found."""

    def __init__(self) -> None:
        super().__init__(f"more than {_MOST_OBJECTS} objects belong to the target")


@contextlib.contextmanager
def swapped_values(
    roots: Any,
    convert: Callable[[torch.Tensor], torch.Tensor],
    *,
    partly: bool = False,
) -> Iterator[None]:
    """`convert` gets each storage as a flat tensor and may return any dtype.

    With `partly`, it is enough if some of the values are swapped.
    """
    memory: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
    try:
        for tensor in reachable(roots, partly=partly):
            if not _can_change(tensor):
                continue
            storage = tensor.untyped_storage()
            key = (storage.data_ptr(), tensor.dtype)
            if key not in memory:
                flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                memory[key] = convert(flat.set_(storage))
            original = tensor.data
            gradient = tensor.grad if tensor.is_leaf else None
            before.append((tensor, original, gradient))
            shape = (original.size(), original.stride(), original.storage_offset())
            _set_values(tensor, memory[key].as_strided(*shape), gradient)
        yield
    finally:
        for tensor, original, gradient in reversed(before):
            _set_values(tensor, original, gradient)


def _set_values(
    tensor: torch.Tensor, values: torch.Tensor, gradient: torch.Tensor | None
) -> None:
    """Sets values and gradient; the gradient must have the dtype of its tensor."""
    if tensor.is_leaf:
        tensor.grad = None
    tensor.data = values
    if gradient is not None:
        tensor.grad = gradient.to(values.dtype)


class SavedValues:
    """The values of all tensors that are reachable from an object, and their gradients.

    `restore` writes them back in place, so that compiled code and CUDA graphs, which
    may rely on addresses, stay valid.
    """

    def __init__(self, root: Any) -> None:
        tensors = {id(each): each for each in _with_gradients(root)}
        self._saved = [(each, each.detach().clone()) for each in tensors.values()]

    def restore(self) -> bool:
        """Restores the values; returns whether any had changed."""
        changed = [
            (tensor, values)
            for tensor, values in self._saved
            if not torch.equal(_comparable(tensor.detach()), _comparable(values))
        ]
        with torch.no_grad():
            for tensor, values in changed:
                tensor.detach().copy_(values)
        return bool(changed)


def _comparable(values: torch.Tensor) -> torch.Tensor:
    """Float8 has no comparison."""
    bits = values.is_floating_point() and values.itemsize == 1
    return values.view(torch.uint8) if bits else values


def _with_gradients(root: Any) -> Iterator[torch.Tensor]:
    for tensor in reachable(root):
        if tensor.layout is torch.strided and tensor.device.type != "meta":
            yield tensor
            if tensor.is_leaf and tensor.grad is not None:
                yield tensor.grad


def _can_change(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.numel() > 0
        and not (tensor.is_conj() or tensor.is_neg())
    )


def reachable(root: Any, *, partly: bool = False) -> Iterator[torch.Tensor]:
    """Yields the tensors that are reachable from an object.

    Raises `TooManyObjects` in the end if there are more, unless some are enough.
    """
    waiting: list[Any] = [root]
    visited: dict[int, Any] = {}
    while waiting and len(visited) < _MOST_OBJECTS:
        value = waiting.pop()
        if id(value) in visited or isinstance(value, _LEAVES):
            continue
        visited[id(value)] = value  # keeps it alive, so that its id stays unique
        if isinstance(value, torch.Tensor):
            yield value
        else:
            waiting.extend(_referents(value))
    if waiting and not partly:
        raise TooManyObjects


def _referents(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.FunctionType):
        yield from _referents_of_function(value)
    elif isinstance(value, types.CellType):
        with contextlib.suppress(ValueError):  # not yet assigned
            yield value.cell_contents
    if not isinstance(value, types.FunctionType):
        yield from getattr(value, "__dict__", {}).values()
    for name in getattr(type(value), "__slots__", ()):
        if isinstance(name, str):
            yield getattr(value, name, None)


def _referents_of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__closure__ or ()
    yield from function.__defaults__ or ()
    yield getattr(function, "__wrapped__", None)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, (torch.Tensor, torch.nn.Module, dict, list)):
            yield value
