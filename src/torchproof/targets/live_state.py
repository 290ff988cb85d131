"""Keeps the objects of this process as they are while their calls run here.

Takes a function and its calls. Finds the modules and tensors that the function reaches,
and gives them their values, attributes, gradients and modes back at the end.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from torchproof import torch_private
from torchproof.targets.live_calls import preserve_random_state

_DICTS = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def preserve(fn: Any, calls: list[Any]) -> Iterator[None]:
    """Restores everything that running the calls may change, as far as it is found."""
    import torch

    found = [*reached(fn), *torch_private.trees.tensors(calls)]
    modules = {
        id(part): part
        for each in found
        if isinstance(each, torch.nn.Module)
        for part in each.modules()
    }
    tensors = {id(each): each for each in found if isinstance(each, torch.Tensor)}
    for module in modules.values():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        tensors |= {id(tensor): tensor for tensor in own}
    restore = [
        *map(_attributes_of, modules.values()),
        *map(_value_of, tensors.values()),
    ]
    with preserve_random_state(), torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            yield
        finally:
            for each in restore:
                each()


def _attributes_of(module: Any) -> Callable[[], None]:
    """Gives a module its attributes back, which include its mode and its buffers."""
    before = dict(vars(module))
    inner = {name: dict(before[name]) for name in _DICTS}

    def restore() -> None:
        vars(module).clear()
        vars(module).update(before)
        for name, values in inner.items():
            before[name].clear()
            before[name].update(values)

    return restore


def _value_of(tensor: Any) -> Callable[[], None]:
    import torch

    value, gradient = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None
    of_gradient = None if gradient is None else gradient.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            if not torch.equal(tensor, value):
                tensor.copy_(value)
            if gradient is not None:
                gradient.copy_(of_gradient)
        if tensor.is_leaf:
            tensor.grad = gradient

    return restore


def reached(fn: Any) -> list[Any]:
    """What a callable holds: its module, its closure, the globals that it uses."""
    import torch

    found: dict[int, Any] = {}
    waiting = [fn]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        if isinstance(each, torch.nn.Module):
            continue
        if isinstance(each, functools.partial):
            waiting += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, types.MethodType):
            waiting += [each.__self__, each.__func__]
        elif isinstance(each, types.FunctionType):
            names = inspect.getclosurevars(each)
            waiting += [*names.nonlocals.values(), *names.globals.values()]
        elif isinstance(each, list | tuple | dict):
            waiting += each.values() if isinstance(each, dict) else each
    return list(found.values())
