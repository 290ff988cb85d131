"""Functions that compiled code calls on the host, and whose results are tensors."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from torchproof.runtime.operator_arguments import (
    as_object,
    packed,
    serial_number,
    unpacked,
)

Tensors = Tensor | tuple[Tensor, ...] | list[Tensor]


def host_call(
    function: Callable[..., Any], /, *arguments: Any, like: Tensors, **keywords: Any
) -> Any:
    """Calls a function on the host, without a graph break in compiled code.

    `like` is a tensor, or a tuple or list of tensors, with the shape, the type and the
    device of each result. Compiled code calls the function when the graph runs, and
    raises if a result is different. The function must not change its arguments, and
    returns new tensors without a gradient, or numpy arrays, which become tensors.
    """
    if not torch.compiler.is_compiling():
        return _as_tensors(function(*arguments, **keywords))
    values = [_parts(function), arguments, list(keywords.values())]
    tensors, integers, layout = packed(values, other=as_object)
    expected = [like] if isinstance(like, Tensor) else list(like)
    if any(each.requires_grad for each in tensors):
        if any(each.is_floating_point() for each in expected):
            raise TypeError("a host call cannot compute a gradient")
        tensors = [each.detach() for each in tensors]
    results = _host_call(
        tensors,
        integers,
        [size for each in expected for size in each.shape],
        layout=layout,
        keywords=",".join(keywords),
        forms=" ".join(f"{e.dtype}/{e.dim()}/{e.device}" for e in expected),
        serial_number=serial_number(),
    )
    if isinstance(like, Tensor):
        return results[0]
    return tuple(results) if isinstance(like, tuple) else results


def _parts(function: Callable[..., Any]) -> list[Any]:
    """A function, or the function of a method and its object."""
    if isinstance(function, types.MethodType):
        return [function.__func__, function.__self__]
    return [function]


def _as_tensors(results: Any) -> Any:
    if isinstance(results, numpy.ndarray):
        return torch.as_tensor(results)
    if type(results) in (tuple, list):
        return type(results)(_as_tensors(each) for each in results)
    return results


@torch.library.custom_op(
    # A CUDA graph cannot hold it: it reads tensors on the host.
    "torchproof::host_call",
    mutates_args=(),
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _host_call(
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    sizes: Sequence[int],
    *,
    layout: str,
    keywords: str,
    forms: str,
    serial_number: int,
) -> list[Tensor]:
    (function, *owner), arguments, values = unpacked(tensors, integers, layout)
    named = dict(zip(keywords.split(",") if keywords else (), values, strict=True))
    results = _as_tensors(function(*owner, *arguments, **named))
    found = [results] if isinstance(results, Tensor) else list(results)
    expected = _forms(sizes, forms)
    given = [(each.dtype, list(each.shape), each.device) for each in found]
    if given != expected:
        raise RuntimeError(
            f"{function.__qualname__} returned {_shown(given)}, but the call says that"
            f" it returns {_shown(expected)}"
        )
    return [each.contiguous() for each in found]  # as the template is


@_host_call.register_fake
def _(
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    sizes: Sequence[int],
    *,
    layout: str,
    keywords: str,
    forms: str,
    serial_number: int,
) -> list[Tensor]:
    return [
        torch.empty(size, dtype=dtype, device=device)
        for dtype, size, device in _forms(sizes, forms)
    ]


# It may draw random numbers: it runs even if nothing uses its results.
torch.fx.node.has_side_effect(torch.ops.torchproof.host_call.default)

Form = tuple[torch.dtype, list[int], torch.device]


def _forms(sizes: Sequence[int], forms: str) -> list[Form]:
    """The type, the sizes and the device of each result."""
    found: list[Form] = []
    left = list(sizes)
    for form in forms.split(" "):
        dtype, count, device = form.split("/")
        own, left = left[: int(count)], left[int(count) :]
        kind = getattr(torch, dtype.removeprefix("torch."))
        found.append((kind, own, torch.device(device)))
    return found


def _shown(forms: Sequence[Form]) -> str:
    return ", ".join(
        f"{str(dtype).removeprefix('torch.')}{sizes} on {device}"
        for dtype, sizes, device in forms
    )
