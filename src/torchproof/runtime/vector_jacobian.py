"""Gradients of one call, without touching `.grad`: a vector-Jacobian product.

In come the module and the arguments before the call, and its output after. Out go the
gradients with regard to parameters and arguments, by label. The vector is random, but
the same for each output of the same number, shape and type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchproof.records import one_line
from torchproof.runtime.tensors.tree import walk

Edges = Mapping[str, GradientEdge]


@dataclass(frozen=True)
class Differentiated:
    """Gradients by label, None where there is none; or why they were not computed.

    `failed` tells that computing them raised an error, other than for memory.
    """

    found: Mapping[str, Tensor | None] = field(default_factory=dict)
    refused: str | None = None
    failed: bool = False


def are_sharded(owner: nn.Module | None) -> bool:
    """Whether parameters are gathered and reduced by hooks that run in `backward`."""
    parameters = owner.parameters() if owner is not None else ()
    return any(hasattr(parameter, "__tensor_flatten__") for parameter in parameters)


def edges_of(
    owner: nn.Module | None, args: Any, kwargs: Any, *, apart: bool = False
) -> tuple[Edges, Any, Any]:
    """Where gradients arrive, taken before the call can change a tensor in place.

    With `apart`, arguments that are results of earlier operations are replaced by
    tensors over the same memory, as a change in place would become part of their
    history for good. The arguments to call with are returned, too.
    """
    if not torch.is_grad_enabled():
        return {}, args, kwargs
    if apart:
        args, kwargs = apart_from_history((args, kwargs))
    tensors: dict[str, Tensor] = {
        f"gradient of {name}": parameter
        for name, parameter in (owner.named_parameters() if owner is not None else ())
    }
    for label, value in _inputs(args, kwargs):
        if isinstance(value, Tensor):
            tensors[f"gradient of {label}"] = value
    edges = {
        label: get_gradient_edge(tensor)
        for label, tensor in tensors.items()
        if tensor.requires_grad
    }
    return edges, args, kwargs


def pull_back(
    output: Any, edges: Edges, *, retain: bool = False
) -> Differentiated | None:
    """The gradients, or None where no output requires any."""
    outputs = [
        part
        for _, part in walk(output, "")
        if isinstance(part, Tensor) and part.requires_grad
    ]
    if not outputs or not edges:
        return None
    if any(hasattr(part, "__tensor_flatten__") for part in outputs):
        return Differentiated(refused="an output is a tensor subclass")
    vectors = [_vector(part, number) for number, part in enumerate(outputs)]
    try:
        found = torch.autograd.grad(
            outputs, [*edges.values()], vectors, retain_graph=retain, allow_unused=True
        )
    except torch.OutOfMemoryError:
        return Differentiated(refused="memory does not suffice")
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 300)
        return Differentiated(refused=told, failed=True)
    return Differentiated(dict(zip(edges, found, strict=True)))


def _vector(output: Tensor, number: int) -> Tensor:
    generator = torch.Generator(output.device).manual_seed(number)
    return torch.randn(
        output.shape, dtype=output.dtype, device=output.device, generator=generator
    )


def _inputs(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    for i, value in enumerate(args):
        yield from walk(value, f"input {i}")
    for name, value in kwargs.items():
        yield from walk(value, f"input {name}")


def apart_from_history(value: Any) -> Any:
    """The same structure, tensors that have a history replaced."""
    parts = [part for _, part in walk(value, "", objects=False)]
    replaced: dict[int, Any] = {
        id(part): _replaced(part) for part in parts if _has_history(part)
    }
    if not replaced:
        return value
    # Parts come after what holds them. What holds itself is found in a second round.
    parts.reverse()
    holders: dict[int, Any] = {}
    known = -1
    while known < len(holders):
        known = len(holders)
        for part in parts:
            if any(id(v) in replaced or id(v) in holders for v in _held(part)):
                holders[id(part)] = part
    for key, part in holders.items():
        if type(part) is not tuple:
            replaced[key] = type(part)()  # filled below: it may hold itself
    for part in parts:
        if id(part) in holders and type(part) is tuple:
            replaced[id(part)] = tuple(replaced.get(id(v), v) for v in part)
    for key, part in holders.items():
        if type(part) is list:
            replaced[key] += [replaced.get(id(v), v) for v in part]
        elif type(part) is dict:
            replaced[key] |= {k: replaced.get(id(v), v) for k, v in part.items()}
    return replaced[id(value)]


def _held(value: Any) -> Iterable[Any]:
    if type(value) is dict:
        return value.values()
    return value if type(value) in (list, tuple) else ()


def _has_history(value: Any) -> bool:
    return type(value) is Tensor and not value.is_leaf and value.requires_grad


def _replaced(tensor: Tensor) -> Tensor:
    made = _OverSameMemory.apply(tensor)
    made.__dict__.update(tensor.__dict__)  # marks of sizes that vary
    return made


class _OverSameMemory(torch.autograd.Function):
    """A tensor over the same memory, which autograd does not take for a view."""

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
