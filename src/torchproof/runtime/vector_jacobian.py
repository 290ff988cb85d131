"""The gradients of one call as a vector-Jacobian product, without touching `.grad`.

Takes the module and the arguments before the call, and the output after it; returns the
gradients of parameters and arguments by label. The vector is random, but the same for
each output of the same position, shape and type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchproof.records import one_line
from torchproof.runtime.forward_state import inputs_of
from torchproof.torch_private import trees

Edges = Mapping[str, GradientEdge]


@dataclass(frozen=True)
class Differentiated:
    """Gradients by label, None for unused tensors; or why they were not computed.

    `failed` means that computing them raised an error other than out of memory.
    """

    by_label: Mapping[str, Tensor | None] = field(default_factory=dict)
    refused: str | None = None
    failed: bool = False


def are_sharded(owner: nn.Module | None) -> bool:
    """Whether hooks that run in `backward` gather and reduce the parameters."""
    parameters = owner.parameters() if owner is not None else ()
    return any(hasattr(parameter, "__tensor_flatten__") for parameter in parameters)


def edges_of(
    owner: nn.Module | None,
    args: Any,
    kwargs: Any,
    *,
    apart: bool = False,
    left_out: dict[str, str] | None = None,
) -> tuple[Edges, Any, Any]:
    """The gradient edges, taken before the call can change a tensor in place.

    With `apart`, arguments that have an autograd history are replaced by tensors over
    the same memory: an in-place change would become part of their history. Also returns
    the arguments to call with. `left_out` gets what has no edge, and why.
    """
    if not torch.is_grad_enabled():
        return {}, args, kwargs
    if apart:
        args, kwargs = apart_from_history((args, kwargs))
    tensors: dict[str, Tensor] = {
        f"gradient of {name}": parameter
        for name, parameter in (owner.named_parameters() if owner is not None else ())
    }
    for label, value in inputs_of(args, kwargs):
        if isinstance(value, Tensor):
            tensors[f"gradient of {label}"] = value
    edges: dict[str, GradientEdge] = {}
    for label, tensor in tensors.items():
        if not tensor.requires_grad:
            continue
        try:
            edges[label] = get_gradient_edge(tensor)
        except Exception as error:  # torch views a leaf, and sparse ones have no views
            why = one_line(f"{type(error).__name__}: {error}", 100)
            if left_out is not None:
                left_out[label] = why
    return edges, args, kwargs


def pull_back(
    output: Any, edges: Edges, *, retain: bool = False
) -> Differentiated | None:
    """The gradients, or None if no output requires any."""
    outputs = [
        part for part in trees.tensors(output, objects=True) if part.requires_grad
    ]
    if not outputs or not edges:
        return None
    if any(hasattr(part, "__tensor_flatten__") for part in outputs):
        return Differentiated(refused="an output is a tensor subclass")
    for part in outputs:
        if part.layout is not torch.strided or part.is_nested:
            what = "nested tensor" if part.is_nested else f"tensor of {part.layout}"
            return Differentiated(refused=f"an output is a {what}")
    vectors = [_vector(part, number) for number, part in enumerate(outputs)]
    try:
        gradients = torch.autograd.grad(
            outputs, [*edges.values()], vectors, retain_graph=retain, allow_unused=True
        )
    except torch.OutOfMemoryError:
        return Differentiated(refused="there is not enough memory")
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}", 300)
        return Differentiated(refused=why, failed=True)
    return Differentiated(dict(zip(edges, gradients, strict=True)))


def _vector(output: Tensor, number: int) -> Tensor:
    generator = torch.Generator(output.device).manual_seed(number)
    return torch.randn(
        output.shape, dtype=output.dtype, device=output.device, generator=generator
    )


def apart_from_history(value: Any) -> Any:
    """The same structure, with tensors that have an autograd history replaced."""
    if not any(map(_has_history, trees.tensors(value))):
        return value
    parts, holding = _parts_with_history(value)

    def is_leaf(part: Any) -> bool:
        if id(part) in parts:
            return id(part) not in holding
        # A container that another one builds each time it is taken apart.
        return not any(map(_has_history, trees.tensors(part)))

    def change(part: Any) -> Any:
        return _replaced(part) if _has_history(part) else part

    return trees.mapped(value, change, is_leaf=is_leaf)


def _parts_with_history(value: Any) -> tuple[dict[int, Any], set[int]]:
    """All parts by their id, and those that are or hold a tensor with a history.

    Each part is looked at once, so that deep values take no longer than wide ones.
    """
    parts: dict[int, Any] = {}
    holders: dict[int, list[int]] = {}
    reached, found = [value], list[int]()
    while reached:
        part = reached.pop()
        if id(part) in parts:
            continue
        parts[id(part)] = part  # kept alive: its id stays its own
        if _has_history(part):
            found.append(id(part))
        for inner in trees.parts(part):
            holders.setdefault(id(inner.value), []).append(id(part))
            reached.append(inner.value)
    holding = set[int]()
    while found:
        each = found.pop()
        if each not in holding:
            holding.add(each)
            found += holders.get(each, ())
    return parts, holding


def _has_history(value: Any) -> bool:
    return type(value) is Tensor and not value.is_leaf and value.requires_grad


def _replaced(tensor: Tensor) -> Tensor:
    alias = _OverSameMemory.apply(tensor)
    alias.__dict__.update(tensor.__dict__)  # marks of dynamic sizes
    return alias


class _OverSameMemory(torch.autograd.Function):
    """A tensor over the same memory that autograd does not treat as a view."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return fresh.set_(
            tensor.untyped_storage(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient
