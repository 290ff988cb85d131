"""Calls of a pack that need no tracing: what they were made under, and put in force.

Tracing looks at more than its guards ask for: hooks, methods put on single modules,
switches of torch. They have to be here what they were when the call was written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchproof.records import one_line
from torchproof.runtime import recipe_following
from torchproof.runtime.compiled_forward import CompiledForward
from torchproof.runtime.loading import example_inputs, warm_up
from torchproof.runtime.method_replacement import MethodReplacement
from torchproof.runtime.pack_format.contents import Contents
from torchproof.torch_private import (
    InstalledCall,
    PrecompileError,
    cache_lookups,
    frames,
    install_call,
)

FOLDER = "entries"
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class InstalledCalls:
    """The calls of a pack that are in force, by number, and why others are not."""

    calls: dict[int, InstalledCall] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def why_none(entry: CompiledForward) -> str | None:
    """Why a model compiled in this way has no such calls."""
    strategy = entry.options.requested
    if strategy.graph:
        return f"strategy {strategy.name} records whole calls at start"
    if strategy.form != "full":
        return f"strategy {strategy.name} compiles parts of the model"
    return None


def install(
    contents: Contents, entry: CompiledForward, details: Mapping[str, Any]
) -> InstalledCalls:
    """What of the pack's calls fits; others are traced, as they are without a pack."""
    found = InstalledCalls()
    try:
        reason = why_none(entry) or _changed(entry, details.get("switches", {}))
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}", 200)
    by_file: dict[str, InstalledCall] = {}
    for number, told in enumerate(details["calls"]):
        name = told.get("entry", {}).get("file")
        if name is None:
            continue  # the pack says why
        why = reason
        try:
            if why is None:
                found.calls[number] = _one(contents.read, entry, told, by_file)
        except PrecompileError as error:
            why = one_line(str(error), 300)
        except Exception as error:  # a service starts, if not as fast
            why = one_line(f"{type(error).__name__}: {error}", 300)
        if why is not None:
            found.notes.append(f"call {number} is traced: {why}")
    return found


def _one(
    read: Callable[[str], bytes],
    entry: CompiledForward,
    told: Mapping[str, Any],
    by_file: dict[str, InstalledCall],
) -> InstalledCall:
    """What takes this call: calls that differ in sizes alone may have it in common."""
    name = told["entry"]["file"]
    with packed_call(entry, told) as (fn, args, kwargs):
        if name not in by_file:
            by_file[name] = install_call(read(name), fn, args, kwargs)
        elif not by_file[name].accepts(args, kwargs):
            raise PrecompileError("its guards fail here")
    return by_file[name]


@contextlib.contextmanager
def packed_call(
    entry: CompiledForward, told: Mapping[str, Any]
) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """What is traced and a call of this kind, with the model in the state it was in."""
    owner = entry.owner
    before = warm_up.state_of(owner)
    if owner is not None and told["state"]:
        warm_up.set_training(owner, told["state"])
    try:
        with warm_up.gradient_mode(told["gradients"]):
            yield frames.traceable(entry.eager), *arguments(entry, told["inputs"])
    finally:
        if owner is not None:
            warm_up.set_training(owner, before)


def arguments(
    entry: CompiledForward, told: Mapping[str, Any], seed: int = 0
) -> Arguments:
    """A made call as it reaches compiled code, with the sizes marked that vary."""
    given = example_inputs.make(dict(told), seed)
    args, kwargs = ((), given) if isinstance(given, dict) else (tuple(given), {})
    varying = recipe_following.whole_varying(
        recipe_following.plan_of(entry.options.recipe)
    )
    taken: Arguments = recipe_following.marked(_as_given, varying)(*args, **kwargs)
    return taken


def _as_given(*args: Any, **kwargs: Any) -> Arguments:
    return args, kwargs


# -- what guards do not ask for --------------------------------------------------------


def module_override(entry: CompiledForward) -> str | None:
    """A method or a hook that was put on a single module, which guards overlook."""
    owner = entry.owner
    for path, module in owner.named_modules() if owner is not None else ():
        for name, value in module.__dict__.items():
            own = isinstance(
                value, MethodReplacement | nn.Module | type
            ) or not callable(value)
            if not own and hasattr(type(module), name):
                return f"{name} of {path or 'the model'} is not that of its class"
        for name in _HOOKS:
            if path and module.__dict__.get(name):  # the model's own run outside
                return f"{path} has hooks"
    if any(getattr(nn.modules.module, f"_global{name}") for name in _HOOKS):
        return "there are hooks on all modules"
    return None


def _changed(entry: CompiledForward, then: Mapping[str, str]) -> str | None:
    here = switches()
    for name in sorted({*here, *then}):
        if here.get(name) != then.get(name):
            was = then.get(name, "not set")
            return f"{name} is {here.get(name, 'not set')} here, and was {was}"
    return module_override(entry)


def switches() -> dict[str, str]:
    """Those of torch that decide which code is generated and are asked by no guard."""
    cuda: Any = torch.backends.cuda
    cpu: Any = torch.backends.mkldnn
    found = {
        "flash attention": cuda.flash_sdp_enabled(),
        "memory-efficient attention": cuda.mem_efficient_sdp_enabled(),
        "attention in plain operations": cuda.math_sdp_enabled(),
        "attention of cuDNN": cuda.cudnn_sdp_enabled(),
        "cuDNN": torch.backends.cudnn.enabled,
        "oneDNN": cpu.is_available() and cpu.enabled,
        "precision of float32 products": torch.get_float32_matmul_precision(),
    }
    return {
        name: str(value) for name, value in found.items()
    } | cache_lookups.nondefault_switches()
