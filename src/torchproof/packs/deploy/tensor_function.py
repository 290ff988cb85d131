"""Converts a loaded target into a function from tensors to tensors, for packages.

Takes the target and its calls. Returns a module that takes and returns flat lists of
tensors, the structure of calls and outputs, and the tensors of each call.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.records import Frame, Keywords, UserError, one_line, place_of, shown
from torchproof.runtime import CallSpec, TensorSpec, by_name, order_of
from torchproof.targets import Loaded
from torchproof.torch_private import Structure, Unfit, tree_specs

Tensors = list[torch.Tensor]
_FIRST_KEY = re.compile(r"^\['?(\w+)'?\]")  # of a label: "['x'][0]" is shown as "x[0]"


class Refusal(Exception):
    """The one-line reason why no package is possible; the command exits with 1."""


class _Seen:
    output: Structure


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
    def output(self) -> Structure:
        return self._seen.output

    def forward(self, *t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.call.split(t)
        answer: Tensors = []
        output = self.fn(*args, **kwargs)
        self._seen.output = tree_specs.flatten(output, answer, "output")
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
    first: Tensors = []
    names = _positional_names(fn)
    args, kwargs = _split(loaded.calls[0])
    try:
        form = tree_specs.flatten(by_name(args, kwargs, names), first, "the call")
        if form.has_records:
            raise Unfit("an argument is a record: pass its tensors in a dict")
    except Unfit as error:
        raise Refusal(str(error)) from None
    flat = Flat(fn, CallSpec(names, len(args), form))
    leaves = zip(form.labels, form.leaves, strict=True)
    labels = tuple(
        _FIRST_KEY.sub(r"\1", label) for label, leaf in leaves if leaf.kind == "tensor"
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


def _positional_names(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters that a call may pass by position."""
    try:
        signature = inspect.signature(getattr(fn, "forward", fn))
    except (TypeError, ValueError):  # a C function
        return ()
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return tuple(p.name for p in signature.parameters.values() if p.kind in kinds)


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
