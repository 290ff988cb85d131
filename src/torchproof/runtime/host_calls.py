"""Functions that compiled code calls on the host, and whose results are tensors."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from torchproof import torch_private
from torchproof.records import Keywords
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
    returns new tensors, or numpy arrays, which become tensors. If a result has a
    gradient, `backward` calls the function once more: it must not be random then.
    """
    if not torch.compiler.is_compiling():
        return _as_tensors(function(*arguments, **keywords))
    values = [_parts(function), arguments, list(keywords.values())]
    tensors, integers, floats, layout = packed(values, other=as_object)
    expected = [like] if isinstance(like, Tensor) else list(like)
    if not any(each.is_floating_point() for each in expected):
        tensors = [each.detach() for each in tensors]
    results = _host_call(
        tensors,
        integers=integers,
        floats=floats,
        sizes=[size for each in expected for size in each.shape],
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
    *,
    integers: Sequence[int],
    floats: Sequence[float],
    sizes: Sequence[int],
    layout: str,
    keywords: str,
    forms: str,
    serial_number: int,
) -> list[Tensor]:
    function, found = _called(tensors, integers, floats, layout=layout, words=keywords)
    expected = _forms(sizes, forms)
    returned = [(each.dtype, list(each.shape), each.device) for each in found]
    if returned != expected:
        raise RuntimeError(
            f"{function.__qualname__} returned {_shown(returned)}, but the call says"
            f" that it returns {_shown(expected)}"
        )
    return [each.contiguous() for each in found]  # as the template is


def _called(
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    floats: Sequence[float],
    *,
    layout: str,
    words: str,
) -> tuple[Callable[..., Any], list[Tensor]]:
    """The function, and its results for the packed arguments."""
    values = unpacked(tensors, integers, floats, layout)
    (function, *owner), arguments, named = values
    keywords = dict(zip(words.split(",") if words else (), named, strict=True))
    results = _as_tensors(function(*owner, *arguments, **keywords))
    return function, [results] if isinstance(results, Tensor) else list(results)


@_host_call.register_fake
def _(
    tensors: Sequence[Tensor], *, sizes: Sequence[int], forms: str, **packed: Any
) -> list[Tensor]:
    return [
        torch.empty(size, dtype=dtype, device=device)
        for dtype, size, device in _forms(sizes, forms)
    ]


# -- gradients -------------------------------------------------------------------------


@torch.library.custom_op(
    "torchproof::host_call_backward",
    mutates_args=(),
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _host_call_backward(
    gradients: Sequence[Tensor],
    tensors: Sequence[Tensor],
    *,
    needed: Sequence[int],
    integers: Sequence[int],
    floats: Sequence[float],
    layout: str,
    keywords: str,
) -> list[Tensor]:
    """The gradients of the tensors whose positions are `needed`."""
    with torch_private.dispatch_modes.recorded_by_autograd():
        inputs = [
            each.detach().requires_grad_(index in needed)
            for index, each in enumerate(tensors)
        ]
        _, found = _called(inputs, integers, floats, layout=layout, words=keywords)
        pairs = [
            (result, gradient)
            for result, gradient in zip(_floats(found), gradients, strict=True)
            if result.requires_grad
        ]
        needed_inputs = [inputs[index] for index in needed]
        own: Sequence[Tensor] = [torch.zeros_like(each) for each in needed_inputs]
        if pairs:
            results, vectors = zip(*pairs, strict=True)
            own = torch.autograd.grad(
                results,
                needed_inputs,
                vectors,
                allow_unused=True,
                materialize_grads=True,
            )
    # With the strides that the operator's template has.
    return [
        torch.empty_like(each).copy_(gradient)
        for each, gradient in zip(needed_inputs, own, strict=True)
    ]


@_host_call_backward.register_fake
def _(
    gradients: Sequence[Tensor],
    tensors: Sequence[Tensor],
    *,
    needed: Sequence[int],
    **packed: Any,
) -> list[Tensor]:
    return [torch.empty_like(tensors[index]) for index in needed]


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each for each in tensors if each.is_floating_point()]


def _keep_inputs(
    ctx: Any, inputs: Any, keyword_only_inputs: Keywords, output: list[Tensor]
) -> None:
    ctx.save_for_backward(*inputs[0])
    names = ("integers", "floats", "layout", "keywords")
    ctx.call = {name: keyword_only_inputs[name] for name in names}
    ctx.differentiable = [each.is_floating_point() for each in output]


def _backward(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any]:
    tensors = ctx.saved_tensors
    needed = [index for index, each in enumerate(ctx.needs_input_grad[0]) if each]
    found = _host_call_backward(
        [
            gradient
            for gradient, own in zip(gradients, ctx.differentiable, strict=True)
            if own and gradient is not None
        ],
        tensors,
        needed=needed,
        **ctx.call,
    )
    by_index = dict(zip(needed, found, strict=True))
    return ([by_index.get(index) for index in range(len(tensors))],)


_host_call.register_autograd(_backward, setup_context=_keep_inputs)


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
