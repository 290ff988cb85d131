"""Installs the precompiled calls of a pack, which run without tracing.

Takes the open pack and the compiled model, returns the installed calls and the reasons
why others are traced. Guards do not check everything that tracing reads: hooks, methods
replaced on single modules, plain attributes and settings of torch must match those of
the build, too.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchproof.records import Keywords, one_line
from torchproof.runtime import recipe_following
from torchproof.runtime.compiled_forward import CompiledForward
from torchproof.runtime.loading import example_inputs, warm_up
from torchproof.runtime.loading.pack_details import (
    CachesDetails,
    CallInputs,
    PackedCall,
)
from torchproof.runtime.method_replacement import MethodReplacement
from torchproof.runtime.pack_format.contents import Contents
from torchproof.torch_private import (
    InstalledCall,
    PrecompileError,
    cache_lookups,
    frames,
    global_switches,
    install_call,
)

FOLDER = "entries"
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
Arguments = tuple[tuple[Any, ...], Keywords]


@dataclass
class InstalledCalls:
    """The installed calls of a pack, by number, and why others are traced.

    `changed` says what differs from the build besides the guards.
    """

    changed: str | None = None
    calls: dict[int, InstalledCall] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def why_none(entry: CompiledForward) -> str | None:
    """Why a model with this strategy has no precompiled calls."""
    strategy = entry.options.requested
    if strategy.graph:
        return f"strategy {strategy.name} records whole calls as CUDA graphs"
    if strategy.form != "full":
        return f"strategy {strategy.name} compiles parts of the model"
    return None


def install(
    contents: Contents, entry: CompiledForward, details: CachesDetails
) -> InstalledCalls:
    """Installs the calls that fit; the others are traced, as without a pack."""
    installed = InstalledCalls(_changed(entry, details))
    reason = why_none(entry) or installed.changed
    by_file: dict[str, InstalledCall] = {}
    for number, call in enumerate(details.calls):
        if call.entry.file is None:
            continue  # the pack has the reason
        why = reason
        try:
            if why is None:
                installed.calls[number] = _install_one(contents, entry, call, by_file)
        except PrecompileError as error:  # tracing works, too, but is slower
            why = one_line(str(error), 300)
        if why is not None:
            installed.notes.append(f"call {number} is traced: {why}")
    return installed


def _install_one(
    contents: Contents,
    entry: CompiledForward,
    call: PackedCall,
    by_file: dict[str, InstalledCall],
) -> InstalledCall:
    """Installs one call; calls that differ only in sizes may share a file."""
    name = call.entry.file
    assert name is not None
    with packed_call(entry, call) as (fn, args, kwargs):
        if name not in by_file:
            by_file[name] = install_call(contents.read(name), fn, args, kwargs)
        elif not by_file[name].accepts(args, kwargs):
            raise PrecompileError("its guards fail in this process")
    return by_file[name]


@contextlib.contextmanager
def packed_call(
    entry: CompiledForward, call: PackedCall
) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], Keywords]]:
    """The function to trace and a generated call, with the model in its build state."""
    owner = entry.owner
    before = warm_up.state_of(owner)
    if owner is not None and call.state is not None:
        warm_up.set_training(owner, call.state)
    try:
        with warm_up.gradient_mode(call.gradients):
            yield frames.traceable(entry.eager), *arguments(entry, call.inputs)
    finally:
        if owner is not None and before is not None:
            warm_up.set_training(owner, before)


def arguments(entry: CompiledForward, inputs: CallInputs, seed: int = 0) -> Arguments:
    """A generated call with its varying sizes marked, as compiled code receives it."""
    call = example_inputs.make(inputs, seed)
    args, kwargs = ((), call) if isinstance(call, dict) else (tuple(call), {})
    varying = recipe_following.whole_varying(
        recipe_following.plan_of(entry.options.recipe)
    )
    marked: Arguments = recipe_following.marked(_collect, varying)(*args, **kwargs)
    return marked


def _collect(*args: Any, **kwargs: Any) -> Arguments:
    return args, kwargs


# -- state that guards do not check ----------------------------------------------------


def module_override(entry: CompiledForward) -> str | None:
    """A method or hook of a single module, which guards do not check; None if none."""
    owner = entry.owner
    for path, module in owner.named_modules() if owner is not None else ():
        for name, value in module.__dict__.items():
            is_data = isinstance(
                value, MethodReplacement | nn.Module | type
            ) or not callable(value)
            if not is_data and hasattr(type(module), name):
                return f"{name} of {path or 'the model'} was replaced on the instance"
        for name in _HOOKS:
            # The model's own hooks run outside of compiled code.
            if path and module.__dict__.get(name):
                return f"{path} has hooks"
    if any(getattr(nn.modules.module, f"_global{name}") for name in _HOOKS):
        return "global module hooks are registered"
    return None


def _changed(entry: CompiledForward, details: CachesDetails) -> str | None:
    now, then = switches(), details.switches
    for name in sorted({*now, *then}):
        if now.get(name) != then.get(name):
            was = then.get(name, "not set")
            return f"{name} is {now.get(name, 'not set')} here, but was {was} at build"
    here = attributes(entry.owner)
    for path in sorted({*here, *details.attributes}):
        if here.get(path) != details.attributes.get(path):
            return f"attributes of {path or 'the model'} differ from those at the build"
    return module_override(entry)


def attributes(owner: nn.Module | None) -> dict[str, str]:
    """A hash of each module's numbers and flags.

    A second check beside torch's guards, made once: a flag that a guard misses would
    give a stale answer. A model whose numbers differ from the build's is traced.
    """
    hashes = {}
    for path, module in owner.named_modules() if owner is not None else ():
        plain = {
            name: value
            for name, value in vars(module).items()
            if type(value) in (bool, int, float)
            and not name.startswith("_")  # a library's notes about the module
            and name != "training"  # each call has its own
        }
        if plain:
            text = repr(sorted(plain.items()))
            hashes[path] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return hashes


def switches() -> dict[str, str]:
    """The settings of torch that affect code generation and that no guard checks."""
    cuda: Any = torch.backends.cuda
    cpu: Any = torch.backends.mkldnn
    values = {
        "flash attention": cuda.flash_sdp_enabled(),
        "memory-efficient attention": cuda.mem_efficient_sdp_enabled(),
        "attention in plain operations": cuda.math_sdp_enabled(),
        "attention of cuDNN": cuda.cudnn_sdp_enabled(),
        "cuDNN": torch.backends.cudnn.enabled,
        "oneDNN": cpu.is_available() and cpu.enabled,
        "precision of float32 products": global_switches.precision_name(),
    }
    return {
        name: str(value) for name, value in values.items()
    } | cache_lookups.nondefault_switches()
