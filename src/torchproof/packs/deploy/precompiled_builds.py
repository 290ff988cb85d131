"""Writes precompiled calls, which a service makes without tracing, and checks them.

A call that cannot be precompiled is traced at start; the pack records the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchproof import runtime
from torchproof.packs.deploy import precompiled_trials
from torchproof.records import one_line
from torchproof.runtime import Contents, cache_install, precompiled_calls
from torchproof.strategies import recipe
from torchproof.targets import Target, calls
from torchproof.torch_private import (
    InstalledCall,
    PrecompileError,
    capture_call,
    install_call,
)


def write(
    target: Target, job: dict[str, Any], details: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the calls to the stage; each call's details name its file or a reason."""
    stage = Path(job["stage"])
    loaded = calls.fresh(target, job)  # in its state before the first call
    compiled = runtime.compile(loaded.fn, recipe=recipe.load(stage / recipe.FILE))
    entry = runtime.compiled_forward_of(compiled)
    reason = precompiled_calls.why_none(entry) or precompiled_calls.module_override(
        entry
    )
    switches = precompiled_calls.switches()
    call_details: list[dict[str, Any]] = []
    installed: dict[int, InstalledCall] = {}
    for call in details["calls"]:
        why = reason or call["inputs"].get("why_not")
        entry_details = (
            {"why_not": why} if why else _written(entry, call, stage, installed)
        )
        call_details.append({**call, "entry": entry_details})
    for each in installed.values():
        each.remove()
    cache_install.collect(Path(job["cache"]), stage)
    return {**details, "calls": call_details, "switches": switches}


def _written(
    entry: Any, call_details: Any, stage: Path, installed: dict[int, InstalledCall]
) -> dict[str, Any]:
    """Write a call to its own file, unless an earlier call's guards accept it too."""
    number = len(installed)
    try:
        with precompiled_calls.packed_call(entry, call_details) as (fn, args, kwargs):
            for earlier, each in installed.items():
                if each.accepts(args, kwargs):
                    return {"file": _file(earlier)}
            raw = capture_call(fn, args, kwargs, entry.options.compile_with)
            installed[number] = install_call(raw, fn, args, kwargs)
    except PrecompileError as error:
        return {"why_not": one_line(str(error), 300)}
    except Exception as error:  # any failure of the compiler
        return {"why_not": _first_line(error)}
    (stage / precompiled_calls.FOLDER).mkdir(exist_ok=True)
    (stage / _file(number)).write_bytes(raw)
    return {"file": _file(number)}


def _file(number: int) -> str:
    return f"{precompiled_calls.FOLDER}/{number}.bin"


def unnoticed(contents: Contents, compiled: Any) -> dict[str, str]:
    """The files of calls whose guards miss a change, with the change."""
    entry, details = runtime.compiled_forward_of(compiled), contents.manifest.details
    installation = precompiled_calls.install(contents, entry, details)
    reasons: dict[str, str] = {}
    for number, installed in installation.calls.items():
        call_details = details["calls"][number]
        if call_details["entry"]["file"] not in reasons:
            why = precompiled_trials.wrongly_taken(
                entry, installed, call_details, compiled
            )
            reasons |= (
                {call_details["entry"]["file"]: f"its guards miss {why}"} if why else {}
            )
    return reasons


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return one_line(f"{type(error).__name__}: {lines[0]}", 200)
