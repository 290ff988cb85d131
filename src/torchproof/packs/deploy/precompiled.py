"""Writes precompiled calls, which a service makes without tracing, and checks them.

A call that cannot be precompiled is traced at start; the pack records the reason.
`unnoticed` changes things that a service may change: a mode, type, size, layout or a
plain attribute. Either the guards reject the call, which is then traced as usual, or
its outputs must equal eager's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchproof import runtime
from torchproof.packs.deploy import PackJob, rank_jobs
from torchproof.records import Keywords, one_line
from torchproof.runtime import (
    Arguments,
    CachesDetails,
    CallInputs,
    CompiledForward,
    Contents,
    PackedCall,
    PackEntry,
    TensorLayout,
    cache_install,
    precompiled_calls,
    save_state,
)
from torchproof.strategies import recipe
from torchproof.torch_private import (
    InstalledCall,
    PrecompileError,
    capture_call,
    comparison,
    install_call,
    trees,
)

_ATTRIBUTES = 200  # at most this many attributes, each once per class
_SECONDS = 60.0


def write(job: PackJob, details: CachesDetails) -> CachesDetails:
    """Write the calls to the stage; each call's details name its file or a reason."""
    stage = Path(job.stage)
    loaded = rank_jobs.fresh(job.run)  # in its state before the first call
    compiled = runtime.compile(loaded.fn, recipe=recipe.load(stage / recipe.FILE))
    entry = runtime.compiled_forward_of(compiled)
    reason = precompiled_calls.why_none(entry)
    if job.ranks > 1:  # its bytecode may contain the rank, which no guard checks
        reason = "it was compiled on several ranks"
    reason = reason or precompiled_calls.module_override(entry)
    switches = precompiled_calls.switches()
    packed: list[PackedCall] = []
    installed: dict[str, InstalledCall] = {}
    for call in details.calls:
        why = reason or call.inputs.why_not
        written = (
            PackEntry(why_not=why) if why else _written(entry, call, stage, installed)
        )
        packed.append(replace(call, entry=written))
    for each in installed.values():
        each.remove()
    cache_install.collect(Path(job.cache), stage)
    return replace(details, calls=tuple(packed), switches=switches)


def _written(
    entry: CompiledForward,
    call: PackedCall,
    stage: Path,
    installed: dict[str, InstalledCall],
) -> PackEntry:
    """Write a call to its own file, unless an earlier call's guards accept it too."""
    file = f"{precompiled_calls.FOLDER}/{len(installed)}.bin"
    try:
        with precompiled_calls.packed_call(entry, call) as (fn, args, kwargs):
            for earlier, each in installed.items():
                if each.accepts(args, kwargs):
                    return PackEntry(earlier)
            raw = capture_call(fn, args, kwargs, entry.options.compile_with)
            installed[file] = install_call(raw, fn, args, kwargs)
    except PrecompileError as error:
        return PackEntry(why_not=one_line(str(error), 300))
    except Exception as error:  # any failure of the compiler
        lines = str(error).strip().splitlines() or [""]
        return PackEntry(why_not=one_line(f"{type(error).__name__}: {lines[0]}", 200))
    (stage / file).parent.mkdir(exist_ok=True)
    (stage / file).write_bytes(raw)
    return PackEntry(file)


def unnoticed(
    contents: Contents, details: CachesDetails, compiled: Any
) -> dict[str, str]:
    """The files of calls whose guards miss a change, with the change."""
    entry = runtime.compiled_forward_of(compiled)
    installation = precompiled_calls.install(contents, entry, details)
    reasons: dict[str, str] = {}
    for number, installed in installation.calls.items():
        call = details.calls[number]
        file = call.entry.file
        if file is not None and file not in reasons:
            why = wrongly_taken(entry, installed, call, compiled)
            reasons |= {file: f"its guards miss {why}"} if why else {}
    return reasons


# -- trials ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change: its name, a context that applies it, and the call's arguments."""

    name: str
    made: AbstractContextManager[Any]
    call: Arguments


def wrongly_taken(
    entry: CompiledForward,
    installed: InstalledCall,
    packed: PackedCall,
    compiled: Any,
) -> str | None:
    """The first change that the guards miss and that changes the outputs."""
    end = time.monotonic() + _SECONDS
    with precompiled_calls.packed_call(entry, packed) as (fn, args, kwargs):
        plain = _Eager(entry, fn)
        expected = plain(args, kwargs)
        for change in _changes(entry, packed, (args, kwargs)):
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

    def __call__(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        return self.run(self.fn, args, kwargs)

    def run(self, fn: Any, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        before = save_state(self.owner, args, kwargs, parameters=False)
        try:
            torch.manual_seed(0)
            return _detached(fn(*args, **kwargs))
        finally:
            before.restore()


def _detached(value: Any) -> comparison.Answers:
    parts = trees.values_of(value, "output")
    return {
        name: part.detach().clone() if isinstance(part, torch.Tensor) else part
        for name, part in parts.items()
    }


def _matters(
    plain: _Eager, expected: comparison.Answers, change: Change, compiled: Any
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


def _alike(actual: comparison.Answers, eager: comparison.Answers) -> str | None:
    tensors = [part for part in eager.values() if isinstance(part, torch.Tensor)]
    types = comparison.types_in_use(tensors, [])
    tolerance = comparison.tolerance_for(types, tensors)
    found = comparison.compare(actual, eager, tolerance=tolerance)
    return None if found.verdict != "wrong" else f"{found.where}: {found.why}"


# -- changes ---------------------------------------------------------------------------


def _changes(
    entry: CompiledForward, packed: PackedCall, call: Arguments
) -> Iterator[Change]:
    owner = entry.owner
    off = not torch.is_grad_enabled()
    yield Change("gradient mode flipped", torch.set_grad_enabled(off), call)
    kind = next((t.device.split(":")[0] for t in packed.inputs.tensors), "cpu")
    yield Change("autocast", torch.autocast(kind, torch.bfloat16), call)
    if owner is not None:
        yield Change("train and eval flipped", _flipped(owner), call)
        for name, weight in list(owner.named_parameters())[:1]:
            wider = _replaced(weight, "data", weight.data.double())
            yield Change(f"{name} in float64", wider, call)
        yield from _attributes(owner, call)
    yield from _inputs(entry, packed.inputs)


@contextlib.contextmanager
def _flipped(owner: nn.Module) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in owner.modules():
            other = not module.training
            stack.enter_context(_replaced(module, "training", other))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


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
                yield Change(f"{where} = {other}", _replaced(module, name, other), call)


def _inputs(entry: CompiledForward, inputs: CallInputs) -> Iterator[Change]:
    for index, tensor in enumerate(inputs.tensors):
        for what, other in _other_tensors(tensor):
            tensors = [*inputs.tensors]
            tensors[index] = other
            try:
                changed = replace(inputs, tensors=tuple(tensors))
                call = precompiled_calls.arguments(entry, changed)
            except Exception:
                continue  # such an input cannot exist
            yield Change(f"input {index} {what}", contextlib.nullcontext(), call)


_OTHER_TYPES = {
    "float32": "float64",
    "bfloat16": "float32",
    "float16": "float32",
    "int64": "int32",
    "int32": "int64",
}


def _other_tensors(tensor: TensorLayout) -> Iterator[tuple[str, TensorLayout]]:
    shape, other = tensor.shape, _OTHER_TYPES.get(tensor.dtype)
    if other is not None:
        yield f"of type {other}", replace(tensor, dtype=other)
    for dimension in range(len(shape)):
        sizes = [n + (d == dimension) for d, n in enumerate(shape)]
        stride = torch.empty(sizes, device="meta").stride()
        yield f"of shape {sizes}", replace(tensor, shape=tuple(sizes), stride=stride)
    if len(shape) > 1:
        strides = tuple(step * 2 for step in tensor.stride)
        yield "with gaps", replace(tensor, stride=strides)
