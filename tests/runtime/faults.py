"""The fault matrix: its rows, its columns, and what each row has to answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gpu_injections as gpu
import harm
import injections as ways

# For a fault that has to be waited for; the others must never come near theirs. On a
# GPU, the child has to start CUDA as well.
HANG_S, INDUCTOR_HANG_S, GPU_HANG_S, AGES_S = 4.0, 15.0, 20.0, 300.0


@dataclass(frozen=True)
class Situation:
    """Where a fault strikes: a column.

    `later`: the first graph compiles, and the fault hits a recompilation. Without
    `wait`, calls run eager while a thread in the background compiles. `options` are of
    Inductor. `graph`: the step is recorded by `torchproof.graph`.
    """

    name: str
    train: bool = False
    later: bool = False
    wait: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    graph: bool = False

    @property
    def is_recorded(self) -> bool:
        return self.graph or "triton.cudagraphs" in self.options


_CUDAGRAPHS = {"triton.cudagraphs": True}
SITUATIONS = {
    situation.name: situation
    for situation in (
        Situation("inference"),
        Situation("training", train=True),
        Situation("recompile", later=True),
        Situation("wait=False", train=True, wait=False),
        Situation("reduce-overhead", options=_CUDAGRAPHS),
        Situation("reduce-overhead, training", train=True, options=_CUDAGRAPHS),
        Situation("graph", graph=True),
        Situation("graph, training", graph=True, train=True),
    )
}
ALL = ("inference", "training", "recompile", "wait=False")
FEW = ("inference", "training", "wait=False")
COMPILED = (*ALL, "reduce-overhead")
GRAPHS = tuple(name for name, each in SITUATIONS.items() if each.is_recorded)
BOTH, TRAINING, NONE = ("inference", "training"), ("training",), ()


@dataclass(frozen=True)
class Fault:
    """A row: what goes wrong, and what `status` has to say about it.

    `kind`, `phase` and `words` are of the fallback. A `kind` of None is for a fault
    that is overcome: nothing runs eager, and `words` are of the status. `calls` counts
    the calls that are hit, one after the other. `alone`: it takes the memory of the
    device, so that no other cell can use it meanwhile. `loses_device`: what is promised
    is only that the error says so. `may_be_overcome`: it depends on the machine whether
    compiling needs what the fault takes away.
    """

    name: str
    way: type[ways.Injection]
    situations: tuple[str, ...]
    device: str
    kind: str | None = None
    phase: str | None = None
    words: str = ""
    backend: str | None = "inductor"
    deadline_s: float = AGES_S
    calls: int = 1
    alone: bool = False
    loses_device: bool = False
    may_be_overcome: bool = False

    @property
    def uses_child(self) -> bool:
        return self.backend == "inductor"


def _late(phase: str, deadline_s: float = HANG_S, **more: Any) -> dict[str, Any]:
    late = {"kind": "deadline", "phase": phase, "words": "took too long"}
    return {**late, "deadline_s": deadline_s, "backend": "aot_eager", **more}


def _child_late(phase: str, deadline_s: float = INDUCTOR_HANG_S) -> dict[str, Any]:
    return _late(phase, deadline_s, backend="inductor")


def _error(words: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "compile error", "words": words, **more}


_OVERCOME: dict[str, Any] = {}
_FIRST_RUN = {"kind": "first run", "words": "planted in a first run"}
_TRITON = _child_late("Triton compiler", GPU_HANG_S)
_MEMORY = {"kind": "first run", "words": "out of memory", "alone": True}
_LOST = {"backend": None, "kind": "first run", "words": "broken the CUDA context"}
_CAPTURE = {"kind": "first run", "words": "captur", "calls": 4}

# Name, way, situations on the CPU and on a GPU, and what is expected.
_Situations = tuple[str, ...]
_ROWS: tuple[
    tuple[str, type[ways.Injection], _Situations, _Situations, dict[str, Any]], ...
] = (
    ("tracing never ends", ways.TracesForEver, ALL, FEW, _late("tracing")),
    (
        "tracing, the clock jumps",
        ways.ClockJumps,
        FEW,
        NONE,
        _late("tracing"),
    ),
    ("tracing is slow", ways.SlowKernel, ALL, NONE, _late("tracing")),
    ("AOTAutograd is slow", ways.SlowInAutograd, ALL, NONE, _late("AOTAutograd")),
    (
        *("AOTAutograd raises", ways.RAISES_IN_AUTOGRAD, ALL, NONE),
        _error("planted in a fake kernel", backend="aot_eager"),
    ),
    ("C++ compiler hangs", ways.Compiler, ALL, NONE, _child_late("C++ compiler")),
    (
        *("C++ compiler is slow, no child", ways.KeptCompiler, ALL, NONE),
        {"words": "in this process"},
    ),
    (
        *("C++ compiler hangs in the backward", ways.BackwardCompiler, TRAINING, NONE),
        _child_late("C++ compiler"),
    ),
    (
        *("child loops in Python", ways.CHILD_LOOPS, ALL, NONE),
        _child_late("code generation"),
    ),
    (
        *("worker pool waits for ever", ways.CHILD_WAITS_FOR_POOL, ALL, NONE),
        _child_late("worker pool"),
    ),
    (
        *("child stopped by SIGSTOP", ways.CHILD_STOPPED, FEW, FEW),
        _child_late("stopped child"),
    ),
    (
        *("child stopped, continued later", ways.CHILD_STOPPED_FOR_A_WHILE, FEW, NONE),
        _OVERCOME,
    ),
    ("child killed by SIGKILL", ways.CHILD_KILLED, ALL, COMPILED, _error("SIGKILL")),
    ("child dies by SIGSEGV", ways.CHILD_CRASHES, ALL, FEW, _error("SIGSEGV")),
    ("child eats memory", ways.ChildEatsMemory, ALL, NONE, _error("memory")),
    ("code generation raises", ways.CHILD_RAISES, ALL, COMPILED, _error("planted")),
    ("code generation raises, no child", ways.KeptRaises, ALL, NONE, _error("planted")),
    ("first run fails", ways.FirstRunFails, ALL, COMPILED, _FIRST_RUN),
    (
        *("first run of the backward fails", ways.BackwardFails, TRAINING, TRAINING),
        _FIRST_RUN,
    ),
    ("cache folder not writable", harm.NoCacheFolder, ALL, ALL[:3], _error()),
    ("disk full", harm.FullDisk, ALL, NONE, _error()),
    ("shared memory full", harm.FullSharedMemory, FEW, NONE, _OVERCOME),
    ("no file can be opened", harm.NoFiles, FEW, NONE, _error("Too many open files")),
    ("process limit reached", harm.NoProcesses, FEW, NONE, _error("thread")),
    ("signal handlers of the user", harm.UserSignals, FEW, NONE, _OVERCOME),
    ("cache entries broken", harm.BrokenEntries, ALL, NONE, _OVERCOME),
    ("cached libraries broken", harm.BrokenLibraries, ALL, NONE, _error()),
    # It cannot be seen from outside that a lock is waited for: so, long enough.
    ("cache locks held", harm.LocksHeld, ALL, NONE, _child_late("lock", 40.0)),
    ("ptxas hangs", gpu.Ptxas, NONE, COMPILED, _TRITON),
    ("ptxas dies by SIGSEGV", gpu.PtxasCrashes, NONE, COMPILED, _error("ptxas")),
    ("ptxas prints an error", gpu.PtxasFails, NONE, FEW, _error("ptxas")),
    (
        *("no device memory in the first run", gpu.FirstRunOutOfMemory, NONE),
        *((*BOTH, "reduce-overhead"), _MEMORY),
    ),
    # Of the kernels, none could be timed. The other cells wait for this one.
    (
        *("no device memory for autotuning", gpu.AutotuningOutOfMemory, NONE, BOTH[:1]),
        _error("NoValidChoices", deadline_s=60.0, alone=True),
    ),
    # The driver, an allocator or cuBLAS says it in its own words.
    (
        *("another process takes the device memory", gpu.OtherProcess, NONE),
        *((*BOTH, "graph"), _error("CUDA", may_be_overcome=True, alone=True)),
    ),
    (
        *("illegal access in the first run", gpu.LosesDevice, NONE, BOTH),
        {**_LOST, "loses_device": True},
    ),
    (
        *("illegal access in the first run, example given", gpu.LosesDeviceOfChild),
        *(NONE, BOTH, {**_LOST, "kind": "probe", "words": "CUDA"}),
    ),
    (
        *("an operator waits for the device during capture", gpu.Synchronizes),
        *(NONE, GRAPHS, _CAPTURE),
    ),
    (
        *("another thread waits for the captured stream", gpu.OtherThreadWaits),
        *(NONE, GRAPHS, _CAPTURE),
    ),
    (
        *("another thread uses the device during capture", gpu.OtherThreadWorks),
        *(NONE, GRAPHS, {"calls": 4}),
    ),
)


def _on_gpu(expected: dict[str, Any]) -> dict[str, Any]:
    waits_for_child = expected.get("deadline_s") == INDUCTOR_HANG_S
    return {**expected, "deadline_s": GPU_HANG_S} if waits_for_child else expected


MATRICES = {
    "cpu": {
        name: Fault(name, way, situations, "cpu", **expected)
        for name, way, situations, _, expected in _ROWS
        if situations
    },
    "cuda": {
        name: Fault(name, way, situations, "cuda", **_on_gpu(expected))
        for name, way, _, situations, expected in _ROWS
        if situations
    },
}
