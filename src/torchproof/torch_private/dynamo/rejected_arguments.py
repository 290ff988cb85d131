"""Finds operations of a captured graph that eager rejects because of their types.

Dynamo traces with fake tensors, and their checks are weaker than those of kernels: a
linear layer takes integers there. Without this, code is generated for a call that
raises. The suspicious operations of a graph run once on real tensors of the same types
and sizes: those with a tensor that is not floating-point, or with several types.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree

_LARGEST = 1 << 22  # elements of the result of an operation that is tried
_LARGE = 1 << 20  # elements from which an argument is one element, expanded
_FILLS = (0, 1)  # either may be a bad value: an index, a divisor
# Operators for integers and booleans.
_OF_BITS = (
    *(operator.and_, operator.or_, operator.xor, operator.invert),
    *(operator.lshift, operator.rshift),
)
_MODULES = (torch, torch.nn.functional, torch._C._nn, operator)


class _NotTried(Exception):
    """The operation cannot be tried with other tensors."""


def error_of(gm: fx.GraphModule) -> Exception | None:
    """The error that an operation raises for every value; None if there is none."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    nodes = list(gm.graph.nodes)
    if any("autocast" in str(node.target) for node in nodes):
        return None  # what types are multiplied depends on the region
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng(devices):
        for node in nodes:
            if _is_suspicious(node) and (error := _error_of_node(node)) is not None:
                return error
    return None


def _is_suspicious(node: fx.Node) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    if node.op == "call_function":
        known = any(getattr(home, name, None) is node.target for home in _MODULES)
        if not known or node.target is operator.setitem:
            return False
    elif node.op != "call_method":
        return False
    is_in_place = name.endswith("_") and node.target not in _OF_BITS
    if name.startswith("_") or is_in_place or "out" in node.kwargs:
        return False
    result = node.meta.get("example_value")
    if isinstance(result, Tensor) and _elements(result) > _LARGEST:
        return False
    values = list(_tensors_of(node))
    if len({value.dtype for value in values}) > 1:
        return True
    # An expanded argument has other strides, which `view` rejects, for example.
    is_small = all(_elements(value) <= _LARGE for value in values)
    is_unusual = node.target in _OF_BITS or any(
        not value.dtype.is_floating_point for value in values
    )
    return is_small and is_unusual


def _tensors_of(node: fx.Node) -> Iterator[Tensor]:
    for each in node.all_input_nodes:
        value = each.meta.get("example_value")
        if isinstance(value, Tensor):
            yield value


def _error_of_node(node: fx.Node) -> Exception | None:
    error: Exception | None = None
    for fill in _FILLS:
        try:
            args, kwargs = fx.map_arg(
                (node.args, node.kwargs), functools.partial(_stand_in, fill=fill)
            )
        except Exception:  # `_NotTried`, or not enough memory
            return None
        try:
            if node.op == "call_method":
                getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                node.target(*args, **kwargs)  # type: ignore[operator]
        except torch.OutOfMemoryError:
            return None
        except Exception as found:
            error = found.with_traceback(None)
        else:
            return None
    return error


def _stand_in(node: fx.Node, fill: int) -> Any:
    value = node.meta.get("example_value")
    if value is None:
        raise _NotTried
    return _pytree.tree_map(lambda part: _made(part, fill), value)


def _made(value: Any, fill: int) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _hint(value)
    if not isinstance(value, Tensor):
        return value
    is_plain = value.layout is torch.strided and not value.is_nested
    is_wrapper = hasattr(value, "__tensor_flatten__")
    if not is_plain or is_wrapper or value.is_meta or value.is_quantized:
        raise _NotTried
    shape = [_hint(size) for size in value.shape]
    is_large = math.prod(shape) > _LARGE
    sizes = [1] * len(shape) if is_large else shape
    whole = torch.full(sizes, fill, dtype=value.dtype, device=value.device)
    return whole.expand(shape)


def _elements(value: Tensor) -> float:
    """The number of elements; infinite if it is unknown."""
    try:
        return math.prod(_hint(size) for size in value.shape)
    except _NotTried:
        return math.inf


def _hint(value: Any) -> Any:
    if isinstance(value, int | float | bool):
        return value
    hint = getattr(value.node, "hint", None)
    if hint is None:  # it depends on the values of a tensor
        raise _NotTried
    return hint
