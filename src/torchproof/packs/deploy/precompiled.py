"""Writes precompiled calls, which a service makes without tracing.

A call that cannot be precompiled is traced at start; the pack records the reason.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchproof import runtime
from torchproof.packs.deploy import PackJob, rank_jobs
from torchproof.records import one_line
from torchproof.runtime import (
    CachesDetails,
    CompiledForward,
    PackedCall,
    PackEntry,
    cache_install,
    precompiled_calls,
)
from torchproof.strategies import recipe
from torchproof.torch_private import (
    InstalledCall,
    PrecompileError,
    capture_call,
    install_call,
)


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
    attributes = precompiled_calls.attributes(entry.owner)
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
    return replace(
        details,
        calls=tuple(packed),
        attributes=attributes,
        switches=precompiled_calls.switches(),
    )


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
