"""Converts a loaded target into a function from tensors to tensors, for packages.

Takes the target and its calls. Returns a module that takes and returns flat lists of
tensors, the structure of calls and outputs, and the tensors of each call.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.records import Frame, Keywords, UserError, one_line, place_of, shown
from torchproof.runtime import (
    CallSpec,
    PytreeSpec,
    TensorSpec,
    Unfit,
    order_of,
    pytree_json,
)
from torchproof.targets import Loaded

Tensors = list[torch.Tensor]


class Refusal(Exception):
    """The one-line reason why no package is possible; the command exits with 1."""


class _Seen:
    output: PytreeSpec


class Flat(torch.nn.Module):
    """The flat function; `output` is the structure of its last output."""

    def __init__(self, fn: Callable[..., Any], call: CallSpec) -> None:
        super().__init__()
        self.fn = fn
        self.call = call
        self.training = bool(getattr(fn, "training", False))
        # Export resets attributes of the module itself, so this object holds the value.
        self._seen = _Seen()

    @property
    def output(self) -> PytreeSpec:
        return self._seen.output

    def forward(self, *t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bound = self.call.bound(t)
        answer: Tensors = []
        output = self.fn(*bound.args, **bound.kwargs)
        self._seen.output = pytree_json.flatten(output, answer, "output")
        return tuple(answer)


@dataclass(frozen=True)
class FlatTarget:
    """The flat target; `inputs` are the tensors of each call, of one structure."""

    fn: Callable[..., Any]
    flat: Flat
    labels: tuple[str, ...]
    inputs: tuple[Tensors, ...]

    @property
    def call(self) -> CallSpec:
        return self.flat.call

    @property
    def device(self) -> str:
        state = (*self.flat.parameters(), *self.flat.buffers(), *self.inputs[0])
        return "cuda" if any(t.is_cuda for t in state) else "cpu"

    @property
    def kinds(self) -> list[torch.dtype]:
        """The floating-point types of the weights."""
        state = (*self.flat.parameters(), *self.flat.buffers())
        return [t.dtype for t in state if t.dtype.is_floating_point]

    def flattened(self, call: Any) -> Tensors:
        """The tensors of another call; raises `Unfit` if its structure differs."""
        return self.call.tensors_of(*_split(call))

    def taken(self, sizes: Sequence[Sequence[int | str]]) -> tuple[TensorSpec, ...]:
        """The inputs that the package accepts: as in the first call, in these sizes."""
        written = self._written()
        return tuple(
            TensorSpec(
                label=label,
                dtype=str(tensor.dtype).removeprefix("torch."),
                device=tensor.device.type,
                sizes=tuple(sizes[i]),
                order=order_of(tensor),
                written=i in written,
            )
            for i, (label, tensor) in enumerate(
                zip(self.labels, self.inputs[0], strict=True)
            )
        )

    def _written(self) -> set[int]:
        inputs = [copied(t) for t in self.inputs[0]]
        with preserved(self.flat), torch.no_grad():
            self.flat(*inputs)
        pairs = zip(inputs, self.inputs[0], strict=True)
        return {i for i, (a, b) in enumerate(pairs) if not is_equal(a, b)}


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal; one with NaN is equal to any of its shape."""
    return one.shape == other.shape and bool(
        torch.equal(one, other) or (one != one).any()
    )


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the memory layout that the package expects."""
    detached = tensor.detach()
    order = order_of(detached)
    back = [order.index(d) for d in range(detached.dim())]
    return detached.permute(order).contiguous().clone().permute(back)


@contextmanager
def preserved(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's buffers after the block."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)


def flatten_target(loaded: Loaded) -> FlatTarget:
    """The flat target, which ran every call in eager.

    Raises `Refusal` if calls differ in more than their tensors.
    """
    fn = getattr(loaded.fn, "_orig_mod", loaded.fn)
    signature = pytree_json.signature_of(fn)
    first: Tensors = []
    try:
        arguments = pytree_json.arguments_of(signature, *_split(loaded.calls[0]))
        form = pytree_json.flatten_arguments(arguments, first)
        for _, part in form.walk():
            if part.record is not None:
                raise Unfit(
                    f"an argument is a {part.record}: pass its tensors in a dict"
                )
    except Unfit as error:
        raise Refusal(str(error)) from None
    except TypeError as error:
        raise UserError(f"the call does not fit the target: {error}") from None
    flat = Flat(fn, CallSpec(pytree_json.parameters_of(signature), form))
    labels = tuple(
        label
        for name, part in zip(form.keys, form.parts, strict=True)
        for label, inner in part.walk(str(name))
        if inner.kind == "tensor"
    )
    inputs = [first]
    for index, call in enumerate(loaded.calls[1:], 1):
        try:
            inputs.append(flat.call.tensors_of(*_split(call)))
        except Unfit as error:
            raise Refusal(
                f"the arguments of call {index} differ in structure from those of call"
                f" 0: {error}; build one pack for each"
            ) from None
    target = FlatTarget(fn, flat, labels, tuple(inputs))
    _assert_runs(target)
    return target


def _split(call: Any) -> tuple[Sequence[Any], Keywords]:
    return ((), call) if isinstance(call, dict) else (call, {})


def _assert_runs(target: FlatTarget) -> None:
    """Run every call in eager, which also determines the output's structure."""
    for index, inputs in enumerate(target.inputs):
        try:
            with preserved(target.flat), torch.no_grad():
                target.flat(*[copied(t) for t in inputs])
        except Unfit as error:
            raise Refusal(str(error)) from None
        except Exception as error:
            line = f"{type(error).__name__}: {error}"
            raise UserError(
                f"the target fails in eager at call {index}: {line}"
            ) from error


def line_of(error: BaseException) -> str:
    """torch's reason and the user's source line, in one line."""
    reason = one_line(str(error).strip().partition("\n\n")[0] or repr(error), 300)
    frames = [
        Frame(f.filename, f.lineno or 0, f.name, f.line or "")
        for f in traceback.extract_tb(error.__traceback__)
    ]
    place = place_of(frames).frame
    if place is None:
        return reason
    return f"{shown(place.file)}:{place.line}: {place.code.strip()}: {reason}"
