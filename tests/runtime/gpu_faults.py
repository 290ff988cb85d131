"""The fault matrix on a GPU: rows of the CPU's matrix, and rows of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gpu_injections as gpu
from faults import FAULTS, FEW, Fault, Situation

# The child has to start CUDA as well.
GPU_HANG_S = 20.0
GPU_SITUATIONS = {
    situation.name: situation
    for situation in (
        Situation("reduce-overhead", options={"triton.cudagraphs": True}),
        Situation(
            "reduce-overhead, training",
            train=True,
            options={"triton.cudagraphs": True},
        ),
        Situation("graph", graph=True),
        Situation("graph, training", graph=True, train=True),
    )
}
GRAPHS = tuple(GPU_SITUATIONS)
COMPILED = ("inference", "training", "recompile", "wait=False", "reduce-overhead")
COLUMNS = (*COMPILED, *GRAPHS[1:])
_KEPT = {
    "tracing loops in Python": FEW,
    "child stopped by SIGSTOP": FEW,
    "child killed by SIGKILL": COMPILED,
    "child dies by SIGSEGV": FEW,
    "code generation raises": COMPILED,
    "cache folder not writable": ("inference", "training", "recompile"),
    "first run fails": COMPILED,
    "first run of the backward fails": ("training",),
}


def _on_gpu(name: str, situations: tuple[str, ...]) -> Fault:
    row = FAULTS[name]
    deadline_s = GPU_HANG_S if row.is_hang and row.uses_child else row.deadline_s
    return replace(row, device="cuda", situations=situations, deadline_s=deadline_s)


_LATE: dict[str, Any] = {
    "kind": "deadline",
    "deadline_s": GPU_HANG_S,
    "words": "took too long",
}
_INDUCTOR: dict[str, Any] = {"backend": "inductor", "device": "cuda"}

GPU_FAULTS = {
    fault.name: fault
    for fault in (
        *(_on_gpu(name, situations) for name, situations in _KEPT.items()),
        Fault(
            "ptxas hangs",
            gpu.Ptxas,
            phase="Triton compiler",
            situations=COMPILED,
            **_LATE,
            **_INDUCTOR,
        ),
        Fault(
            "ptxas hangs, no child",
            gpu.PtxasHere,
            phase="Triton compiler",
            situations=FEW,
            **_LATE,
            **_INDUCTOR,
        ),
        Fault(
            "ptxas dies by SIGSEGV",
            gpu.PtxasCrashes,
            "compile error",
            words="ptxas",
            situations=COMPILED,
            **_INDUCTOR,
        ),
        Fault(
            "ptxas prints an error",
            gpu.PtxasFails,
            "compile error",
            words="ptxas",
            situations=FEW,
            **_INDUCTOR,
        ),
        Fault(
            "no device memory in the first run",
            gpu.FirstRunOutOfMemory,
            "first run",
            words="out of memory",
            situations=("inference", "training", "reduce-overhead"),
            alone=True,
            **_INDUCTOR,
        ),
        Fault(
            "no device memory for autotuning",
            gpu.AutotuningOutOfMemory,
            "compile error",
            words="NoValidChoices",  # of the kernels, none could be timed
            situations=("inference",),
            alone=True,
            deadline_s=60.0,  # the other cells wait for this one
            **_INDUCTOR,
        ),
        Fault(
            "another process takes the device memory",
            gpu.OtherProcess,
            "compile error",
            words="CUDA",  # the driver, an allocator or cuBLAS says it in its own words
            may_be_overcome=True,
            situations=("inference", "training", "graph"),
            alone=True,
            **_INDUCTOR,
        ),
        Fault(
            "illegal access in the first run",
            gpu.LosesDevice,
            "first run",
            words="broken the CUDA context",
            backend=None,
            situations=("inference", "training"),
            device="cuda",
            loses_device=True,
        ),
        Fault(
            "illegal access in the first run, example given",
            gpu.LosesDeviceOfChild,
            "probe",
            words="CUDA",
            backend=None,
            situations=("inference", "training"),
            device="cuda",
        ),
        Fault(
            "an operator waits for the device during capture",
            gpu.Synchronizes,
            "first run",
            words="captur",
            calls=4,
            situations=GRAPHS,
            **_INDUCTOR,
        ),
        Fault(
            "another thread waits for the captured stream",
            gpu.OtherThreadWaits,
            "first run",
            words="captur",
            calls=4,
            situations=GRAPHS,
            **_INDUCTOR,
        ),
        Fault(
            "another thread uses the device during capture",
            gpu.OtherThreadWorks,
            None,
            calls=4,
            situations=GRAPHS,
            **_INDUCTOR,
        ),
    )
}
