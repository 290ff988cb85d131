"""Checks that the guards of precompiled calls detect changes of the model and inputs.

A service may change a mode, type, size, layout or a plain attribute. Either the guards
reject the call, which is then traced as usual, or its outputs must equal eager's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchproof.runtime import (
    Arguments,
    CompiledForward,
    precompiled_calls,
    save_state,
)
from torchproof.torch_private import InstalledCall, comparison, trees

_ATTRIBUTES = 200  # at most this many attributes, each once per class
_SECONDS = 60.0


@dataclass(frozen=True)
class Change:
    """A change: its name, a context that applies it, and the call's arguments."""

    name: str
    made: AbstractContextManager[Any]
    call: Arguments


def wrongly_taken(
    entry: CompiledForward,
    installed: InstalledCall,
    call_details: Mapping[str, Any],
    compiled: Any,
) -> str | None:
    """The first change that the guards miss and that changes the outputs."""
    end = time.monotonic() + _SECONDS
    with precompiled_calls.packed_call(entry, call_details) as (fn, args, kwargs):
        plain = _Eager(entry, fn)
        expected = plain(args, kwargs)
        for change in _changes(entry, call_details, (args, kwargs)):
            with change.made:
                if not _taken(installed, change.call):
                    continue
                if time.monotonic() > end:
                    break
                if why := _matters(plain, expected, change, compiled):
                    return f"{change.name}: {why}"
    return None


def _taken(installed: InstalledCall, call: Arguments) -> bool:
    try:
        return installed.accepts(*call)
    except Exception:  # a guard that raises counts as a rejection
        return False


class _Eager:
    """Runs the function from the same state and random numbers each time."""

    def __init__(self, entry: CompiledForward, fn: Callable[..., Any]) -> None:
        self.owner, self.fn = entry.owner, fn

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.run(self.fn, args, kwargs)

    def run(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = save_state(self.owner, args, kwargs, parameters=False)
        try:
            torch.manual_seed(0)
            return _detached(fn(*args, **kwargs))
        finally:
            before.restore()


def _detached(value: Any) -> dict[str, Any]:
    parts = trees.values_of(value, "output")
    return {
        name: part.detach().clone() if isinstance(part, torch.Tensor) else part
        for name, part in parts.items()
    }


def _matters(
    plain: _Eager, expected: dict[str, Any], change: Change, compiled: Any
) -> str | None:
    """How the output differs from eager's; None if the change does not affect eager."""
    args, kwargs = change.call
    try:
        eager = plain(args, kwargs)
    except Exception:
        return None  # torch.compile without a pack would accept the call too
    if _alike(eager, expected) is None:
        return None
    return _alike(plain.run(compiled, args, kwargs), eager)


def _alike(actual: dict[str, Any], eager: dict[str, Any]) -> str | None:
    tensors = [part for part in eager.values() if isinstance(part, torch.Tensor)]
    types = comparison.types_in_use(tensors, [])
    tolerance = comparison.tolerance_for(types, tensors)
    found = comparison.compare(actual, eager, tolerance=tolerance)
    return None if found.verdict != "wrong" else f"{found.where}: {found.why}"


# -- changes ---------------------------------------------------------------------------


def _changes(
    entry: CompiledForward, call_details: Mapping[str, Any], call: Arguments
) -> Iterator[Change]:
    owner = entry.owner
    off = not torch.is_grad_enabled()
    yield Change("gradient mode flipped", torch.set_grad_enabled(off), call)
    kind = (
        call_details["inputs"]["tensors"][0]["device"].split(":")[0] if call else "cpu"
    )
    yield Change("autocast", torch.autocast(kind, torch.bfloat16), call)
    if owner is not None:
        yield Change("train and eval flipped", _flipped(owner), call)
        for name, weight in list(owner.named_parameters())[:1]:
            wider = _replaced(weight, weight.data.double())
            yield Change(f"{name} in float64", wider, call)
        yield from _attributes(owner, call)
    yield from _inputs(entry, call_details["inputs"])


@contextlib.contextmanager
def _flipped(owner: nn.Module) -> Iterator[None]:
    before = [(module, module.training) for module in owner.modules()]
    try:
        for module, training in before:
            module.training = not training
        yield
    finally:
        for module, training in before:
            module.training = training


@contextlib.contextmanager
def _replaced(weight: torch.Tensor, data: torch.Tensor) -> Iterator[None]:
    before = weight.data
    weight.data = data
    try:
        yield
    finally:
        weight.data = before


def _attributes(owner: nn.Module, call: Arguments) -> Iterator[Change]:
    """Changes of plain attributes of modules, one per class and name."""
    seen: set[tuple[type, str]] = set()
    for path, module in owner.named_modules():
        for name, value in list(module.__dict__.items()):
            key = (type(module), name)
            if name == "training" or key in seen or len(seen) >= _ATTRIBUTES:
                continue
            if type(value) in (bool, int, float):
                seen.add(key)
                other = (not value) if type(value) is bool else value * 2 + 1
                where = f"{path}.{name}".lstrip(".")
                yield Change(
                    f"{where} = {other}", _attribute(module, name, other), call
                )


@contextlib.contextmanager
def _attribute(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    before = module.__dict__[name]
    module.__dict__[name] = value
    try:
        yield
    finally:
        module.__dict__[name] = before


def _inputs(entry: CompiledForward, inputs: Mapping[str, Any]) -> Iterator[Change]:
    for index, tensor in enumerate(inputs["tensors"]):
        for what, other in _other_tensors(tensor):
            tensors = [*inputs["tensors"]]
            tensors[index] = {**tensor, **other}
            try:
                call = precompiled_calls.arguments(
                    entry, {**inputs, "tensors": tensors}
                )
            except Exception:
                continue  # such an input cannot exist
            yield Change(f"input {index} {what}", contextlib.nullcontext(), call)


def _other_tensors(tensor: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    shape, dtype = tensor["shape"], tensor["dtype"]
    kinds = {"float32": "float64", "bfloat16": "float32", "float16": "float32"}
    other = kinds.get(dtype, {"int64": "int32", "int32": "int64"}.get(dtype))
    if other is not None:
        yield f"of type {other}", {"dtype": other}
    for dimension in range(len(shape)):
        sizes = [n + (d == dimension) for d, n in enumerate(shape)]
        yield f"of shape {sizes}", {"shape": sizes, "stride": _packed(sizes)}
    if len(shape) > 1:
        strides = [step * 2 for step in tensor["stride"]]
        yield "with gaps", {"stride": strides}


def _packed(sizes: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(1, size)
    return strides[::-1]
