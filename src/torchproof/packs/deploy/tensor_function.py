"""Converts a loaded target into a function from tensors to tensors, for packages.

Takes the target and its calls. Returns a module that takes and returns flat lists of
tensors, the structure of calls and outputs, and the tensors of each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.records import UserError
from torchproof.runtime import PytreeSpec, TensorSpec, Unfit, order_of, pytree_json
from torchproof.targets import Loaded

Tensors = list[torch.Tensor]


class Refusal(Exception):
    """The one-line reason why no package is possible; the command exits with 1."""


class _Seen:
    def __init__(self) -> None:
        self.form: PytreeSpec = {}


class Flat(torch.nn.Module):
    """The flat function; `output` is the structure of its last output."""

    def __init__(
        self,
        fn: Callable[..., Any],
        signature: inspect.Signature,
        arguments: PytreeSpec,
    ) -> None:
        super().__init__()
        self.fn = fn
        self.signature = signature
        self.arguments = arguments
        # Export resets attributes of the module itself, so this object holds the value.
        self._seen = _Seen()

    @property
    def output(self) -> PytreeSpec:
        return self._seen.form

    def forward(self, *t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        named = {k: pytree_json.rebuild(f, list(t)) for k, f in self.arguments.items()}
        bound = inspect.BoundArguments(self.signature, named)
        answer: Tensors = []
        output = self.fn(*bound.args, **bound.kwargs)
        self._seen.form = pytree_json.flatten(output, answer, "output")
        return tuple(answer)


@dataclass(frozen=True)
class FlatTarget:
    """The flat target; `inputs` are the tensors of each call, of one structure."""

    fn: Callable[..., Any]
    flat: Flat
    labels: tuple[str, ...]
    inputs: tuple[Tensors, ...]

    @property
    def call(self) -> PytreeSpec:
        """The structure of a call, for the manifest."""
        return {
            "parameters": pytree_json.parameters_of(self.flat.signature),
            "arguments": list(self.flat.arguments.items()),
        }

    @property
    def device(self) -> str:
        state = list(self.flat.parameters()) + list(self.flat.buffers())
        cuda = any(t.is_cuda for t in (*state, *self.inputs[0]))
        return "cuda" if cuda else "cpu"

    def flattened(self, call: Any) -> Tensors:
        """The tensors of another call; raises `Unfit` if its structure differs."""
        return _flattened(self.flat.signature, call, self.flat.arguments)[1]

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
        return {i for i, (a, b) in enumerate(pairs) if not _identical(a, b)}


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
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
    """The flat target; raises `Refusal` if calls differ in more than their tensors."""
    fn = getattr(loaded.fn, "_orig_mod", loaded.fn)
    signature = pytree_json.signature_of(fn)
    arguments, first = _first(signature, loaded.calls[0])
    inputs = [first]
    for index, call in enumerate(loaded.calls[1:], 1):
        try:
            inputs.append(_flattened(signature, call, arguments)[1])
        except Unfit as error:
            raise Refusal(
                f"the arguments of call {index} differ in structure from those of call"
                f" 0: {error}; build one pack for each"
            ) from None
    flat = Flat(fn, signature, arguments)
    flat.training = bool(getattr(fn, "training", False))
    labels = tuple(_labels(arguments))
    return FlatTarget(fn, flat, labels, tuple(inputs))


def _first(signature: inspect.Signature, call: Any) -> tuple[PytreeSpec, Tensors]:
    try:
        return _flattened(signature, call, None)
    except Unfit as error:
        raise Refusal(str(error)) from None


def _flattened(
    signature: inspect.Signature, call: Any, packed: Mapping[str, PytreeSpec] | None
) -> tuple[PytreeSpec, Tensors]:
    args, kwargs = ((), call) if isinstance(call, dict) else (call, {})
    try:
        arguments = pytree_json.arguments_of(signature, args, kwargs)
    except TypeError as error:
        raise UserError(f"the call does not fit the target: {error}") from None
    tensors: Tensors = []
    form = {
        name: pytree_json.flatten(value, tensors, name)
        for name, value in arguments.items()
    }
    for part in _parts({"list": list(form.values())}):
        if "fields" in part:
            raise Unfit(f"an argument is a {part['type']}: pass its tensors in a dict")
    if packed is not None:
        structure, packed_structure = (
            {"dict": list(f.items())} for f in (form, packed)
        )
        difference = pytree_json.difference(structure, packed_structure, "arguments")
        if difference is not None:
            raise Unfit(difference)
        tensors = list(
            pytree_json.in_packed_order(structure, packed_structure, tensors)
        )
    return form, tensors


def _parts(form: PytreeSpec) -> Iterator[PytreeSpec]:
    yield form
    for key in ("list", "tuple", "dict", "fields"):
        for part in form.get(key, ()):
            yield from _parts(part[1] if key in ("dict", "fields") else part)


def _labels(arguments: PytreeSpec) -> Iterator[str]:
    for name, form in arguments.items():
        yield from _labelled(form, name)


def _labelled(form: PytreeSpec, label: str) -> Iterator[str]:
    if "tensor" in form:
        yield label
    for key in ("list", "tuple"):
        for i, part in enumerate(form.get(key, ())):
            yield from _labelled(part, f"{label}[{i}]")
    for name, part in form.get("dict", ()):
        yield from _labelled(part, f"{label}[{name!r}]")
