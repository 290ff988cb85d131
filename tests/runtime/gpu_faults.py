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
_ROWS_OF_CPU = {
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


_INDUCTOR: dict[str, Any] = {"backend": "inductor", "device": "cuda"}
_LATE = {"kind": "deadline", "deadline_s": GPU_HANG_S, "words": "took too long"}
_TRITON = {**_INDUCTOR, **_LATE, "phase": "Triton compiler"}
_PTXAS = {**_INDUCTOR, "kind": "compile error", "words": "ptxas"}
_OUT_OF_MEMORY = {**_INDUCTOR, "kind": "first run", "words": "out of memory"}
# Of the kernels, none could be timed. The other cells wait for this one.
_AUTOTUNING = {
    **_INDUCTOR,
    "kind": "compile error",
    "words": "NoValidChoices",
    "deadline_s": 60.0,
}
# The driver, an allocator or cuBLAS says it in its own words.
_NO_MEMORY = {
    **_INDUCTOR,
    "kind": "compile error",
    "words": "CUDA",
    "may_be_overcome": True,
}
_LOST: dict[str, Any] = {
    "backend": None,
    "device": "cuda",
    "kind": "first run",
    "words": "broken the CUDA context",
}
_LOST_IN_CHILD = {**_LOST, "kind": "probe", "words": "CUDA"}
_CAPTURE = {**_INDUCTOR, "kind": "first run", "words": "captur", "calls": 4}
_OVERCOME = {**_INDUCTOR, "calls": 4}
_BOTH = ("inference", "training")

GPU_FAULTS = {
    fault.name: fault
    for fault in (
        *(_on_gpu(name, situations) for name, situations in _ROWS_OF_CPU.items()),
        Fault("ptxas hangs", gpu.Ptxas, COMPILED, **_TRITON),
        Fault("ptxas hangs, no child", gpu.PtxasHere, FEW, **_TRITON),
        Fault("ptxas dies by SIGSEGV", gpu.PtxasCrashes, COMPILED, **_PTXAS),
        Fault("ptxas prints an error", gpu.PtxasFails, FEW, **_PTXAS),
        Fault(
            "no device memory in the first run",
            gpu.FirstRunOutOfMemory,
            (*_BOTH, "reduce-overhead"),
            alone=True,
            **_OUT_OF_MEMORY,
        ),
        Fault(
            "no device memory for autotuning",
            gpu.AutotuningOutOfMemory,
            _BOTH[:1],
            alone=True,
            **_AUTOTUNING,
        ),
        Fault(
            "another process takes the device memory",
            gpu.OtherProcess,
            (*_BOTH, "graph"),
            alone=True,
            **_NO_MEMORY,
        ),
        Fault(
            "illegal access in the first run",
            gpu.LosesDevice,
            _BOTH,
            loses_device=True,
            **_LOST,
        ),
        Fault(
            "illegal access in the first run, example given",
            gpu.LosesDeviceOfChild,
            _BOTH,
            **_LOST_IN_CHILD,
        ),
        Fault(
            "an operator waits for the device during capture",
            gpu.Synchronizes,
            GRAPHS,
            **_CAPTURE,
        ),
        Fault(
            "another thread waits for the captured stream",
            gpu.OtherThreadWaits,
            GRAPHS,
            **_CAPTURE,
        ),
        Fault(
            "another thread uses the device during capture",
            gpu.OtherThreadWorks,
            GRAPHS,
            **_OVERCOME,
        ),
    )
}
