"""What the child process saw of torch, as checks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from torchproof.doctor.torch_facts import Device, Ended, Facts, Stage, Triton
from torchproof.records import (
    MachineCheck,
    installed_torch,
    supported_torch,
    untested_torch,
)
from torchproof.report import numbers

_GROUP = "torch"
_GPU = "GPU"
_FULL_BYTES = 2**30  # less free memory than this, and a model rarely fits
_TRITON_CAPABILITY = [7, 0]
_RANGE = supported_torch()


def checks(facts: Facts) -> Iterator[MachineCheck]:
    torch = _torch(facts)
    yield torch
    if "error" not in facts.get("torch", {"error": ""}):
        yield from _hooks(facts)
        yield _dynamo(facts)


def _torch(facts: Facts) -> MachineCheck:
    said = _error(facts, "torch")
    if said:
        return MachineCheck(
            _GROUP,
            "torch",
            "missing",
            f"{installed_torch()}: {said}",
            "no model can be run; only show, compare, log, rule and static checks work",
            f"install a torch from {_RANGE} and see that `python -c 'import torch'`"
            " works",
        )
    version, seconds = facts["torch"]["version"], facts["torch"]["seconds"]
    value = f"{version}, imported in {seconds:.1f} s"
    if note := untested_torch():
        return MachineCheck(
            _GROUP,
            "torch",
            "degraded",
            value,
            note,
            f"install a torch from {_RANGE}, or a newer torchproof",
        )
    return MachineCheck(_GROUP, "torch", "ok", value, f"supported: {_RANGE}")


def _hooks(facts: Facts) -> Iterator[MachineCheck]:
    """One line if all are there; otherwise one for each feature that lacks a name."""
    said = _error(facts, "hooks")
    if said:
        yield MachineCheck(
            _GROUP,
            "hooks",
            "missing",
            said,
            "torchproof cannot observe the compiler of this torch",
            f"first cure the other lines, as of caches; then use a torch from {_RANGE}",
        )
        return
    hooks = facts["hooks"]
    lacking = hooks["lacking"]
    if not lacking:
        value = f"{hooks['names']} private names for {hooks['features']} features"
        yield MachineCheck(_GROUP, "hooks", "ok", value, "every feature is available")
    for each in lacking:
        yield MachineCheck(
            _GROUP,
            f"hooks: {each['name']}",
            "degraded",
            each["messages"][0],
            each["without"],
            f"install a torch from {_RANGE}",
        )


def _dynamo(facts: Facts) -> MachineCheck:
    error = _error(facts, "dynamo")
    if not error and not facts["dynamo"]["right"]:
        error = "a compiled function returned a wrong result"
    if error:
        return MachineCheck(
            _GROUP,
            "torch.compile",
            "missing",
            error,
            "Dynamo traces no function: nothing can be compiled",
            "first cure the other lines, as of caches; then see whether torch supports"
            " this Python",
        )
    if not facts["dynamo"]["graphs"]:
        return MachineCheck(
            _GROUP,
            "torch.compile",
            "degraded",
            "a compiled function ran eager",
            "torch.compile is switched off: no verb has anything to observe",
            "unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE",
        )
    return MachineCheck(
        _GROUP, "torch.compile", "ok", "traced a function", "Dynamo works"
    )


def _error(facts: Facts, stage: str) -> str:
    """Why a stage has no facts: what it raised, or how the process ended."""
    known = cast("Stage | None", facts.get(stage))
    if known is not None:
        return known.get("error", "")
    never = Ended(stage=stage, how="was not reached", said="")
    ended = facts.get("ended", never)
    return ": ".join(filter(None, (f"the process {ended['how']}", ended["said"])))


def fork_checks(facts: Facts) -> Iterator[MachineCheck]:
    said = _error(facts, "fork")
    if said or facts["fork"]["code"] != 7:
        yield MachineCheck(
            "permissions",
            "fork",
            "missing",
            said or f"a forked process ended with {facts['fork']['code']}",
            "fix and pack --for repro cannot run their trials",
            "allow this container or account to start more processes",
        )
    else:
        yield MachineCheck("permissions", "fork", "ok", "a process was forked")


def gpu_checks(facts: Facts) -> Iterator[MachineCheck]:
    if "error" in facts.get("torch", {"error": ""}):
        return  # the line about torch says it
    cuda = facts.get("cuda", {})
    if said := _error(facts, "cuda"):
        yield _no_gpu(said, optional=False)
    elif not cuda["devices"]:
        yield _none_usable(facts)
    for number, device in enumerate(cuda.get("devices", ())):
        yield _gpu(number, device)
    if cuda.get("devices"):
        yield _triton(cuda["triton"])
        yield _c_compiler()


def _none_usable(facts: Facts) -> MachineCheck:
    """No GPU, or one that this torch cannot use."""
    torch, driver = facts["torch"], _driver()
    if torch["rocm_build"]:
        return _no_gpu("a torch build for ROCm", optional=True)
    if driver and not torch["cuda_build"]:
        return MachineCheck(
            _GPU,
            "CUDA",
            "degraded",
            f"NVIDIA driver {driver}, but torch is a CPU build",
            "the GPU is not used",
            "install a CUDA build of torch: https://pytorch.org/get-started/locally",
        )
    warnings = "; ".join(facts["cuda"]["warnings"])
    if driver and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        return _no_gpu(warnings or f"driver {driver}, no usable GPU", optional=False)
    return _no_gpu("none", optional=True)


def _no_gpu(value: str, *, optional: bool) -> MachineCheck:
    return MachineCheck(
        _GPU,
        "CUDA",
        "missing",
        value,
        "everything but CUDA graphs works on the CPU",
        "" if optional else "see whether nvidia-smi works and the driver is new enough",
        optional,
    )


def _driver() -> str:
    """The version of NVIDIA's kernel module; empty if there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    words = text.split()
    return next((w for w in words if w[:1].isdigit() and "." in w), "unknown")


def _gpu(number: int, device: Device) -> MachineCheck:
    total = numbers.size(device["total_bytes"])
    major, minor = device["capability"]
    value = f"{device['name']}, capability {major}.{minor}, {total}"
    name = f"cuda:{number}"
    if device["error"]:
        return MachineCheck(
            _GPU,
            name,
            "missing",
            f"{value}: {device['error']}",
            "no kernel runs on this GPU",
            "see nvidia-smi: another process may use all of it; or install a torch"
            " build for this GPU",
        )
    value += f" ({numbers.size(device['free_bytes'])} free), driver {_driver() or '-'}"
    if device["capability"] < _TRITON_CAPABILITY:
        return MachineCheck(
            _GPU,
            name,
            "degraded",
            value,
            "Triton needs capability 7.0: torch.compile generates no code for this GPU",
            "use --device cpu, or a newer GPU",
        )
    if device["free_bytes"] < _FULL_BYTES:
        return MachineCheck(
            _GPU,
            name,
            "degraded",
            value,
            "another process uses nearly all of its memory: models do not fit, and"
            " times are not to be trusted",
            "end the other process (nvidia-smi lists it), or set CUDA_VISIBLE_DEVICES",
        )
    return MachineCheck(_GPU, name, "ok", value, "a kernel ran")


def _triton(triton: Triton) -> MachineCheck:
    if "version" in triton:
        return MachineCheck(_GPU, "triton", "ok", triton["version"])
    return MachineCheck(
        _GPU,
        "triton",
        "missing",
        triton["error"],
        "torch.compile generates no code for GPUs",
        "install the triton that your torch names as a dependency",
    )


def _c_compiler() -> MachineCheck:
    """Triton builds the launcher of its kernels with it."""
    named = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, (named,) if named else _C)), None)
    if found:
        return MachineCheck(_GPU, "C compiler", "ok", found, "for Triton's launchers")
    return MachineCheck(
        _GPU,
        "C compiler",
        "missing",
        named or " and ".join(_C),
        "Triton cannot build the launchers of its kernels",
        "install gcc, or set CC",
    )


_C = ("gcc", "clang")
