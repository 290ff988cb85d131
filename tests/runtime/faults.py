"""The fault matrix: its rows, its columns, and what each row has to answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import harm
import injections as ways

# For a fault that has to be waited for; the others must never come near theirs.
HANG_S, INDUCTOR_HANG_S, AGES_S = 4.0, 15.0, 300.0


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


SITUATIONS = {
    situation.name: situation
    for situation in (
        Situation("inference"),
        Situation("training", train=True),
        Situation("recompile", later=True),
        Situation("wait=False", train=True, wait=False),
    )
}
ALL = tuple(SITUATIONS)
FEW = ("inference", "training", "wait=False")


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
    situations: tuple[str, ...] = ALL
    kind: str | None = None
    phase: str | None = None
    words: str = ""
    backend: str | None = "aot_eager"
    deadline_s: float = AGES_S
    calls: int = 1
    device: str = "cpu"
    alone: bool = False
    loses_device: bool = False
    may_be_overcome: bool = False

    @property
    def uses_child(self) -> bool:
        return self.backend == "inductor"

    @property
    def is_hang(self) -> bool:
        return self.deadline_s < AGES_S


_TRAINING = ("training",)
_OVERCOME = {"backend": "inductor"}
_FIRST_RUN = {**_OVERCOME, "kind": "first run", "words": "planted in a first run"}


def _late(phase: str, deadline_s: float = HANG_S, **more: Any) -> dict[str, Any]:
    late = {"kind": "deadline", "phase": phase, "words": "took too long"}
    return {**late, "deadline_s": deadline_s, **more}


def _child_late(phase: str, deadline_s: float = INDUCTOR_HANG_S) -> dict[str, Any]:
    return _late(phase, deadline_s, backend="inductor")


def _error(words: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "compile error", "backend": "inductor", "words": words, **more}


_ROWS: tuple[tuple[str, type[ways.Injection], tuple[str, ...], dict[str, Any]], ...] = (
    ("tracing loops in Python", ways.LoopsInPython, ALL, _late("tracing")),
    ("tracing loops, the clock jumps", ways.ClockJumps, FEW, _late("tracing")),
    ("AOTAutograd loops in Python", ways.LoopsInAutograd, ALL, _late("AOTAutograd")),
    (
        *("AOTAutograd raises", ways.RaisesInAutograd, ALL),
        _error("planted in a fake kernel", backend="aot_eager"),
    ),
    ("C++ compiler hangs", ways.Compiler, ALL, _child_late("C++ compiler")),
    (
        "C++ compiler hangs, no child",
        ways.KeptCompiler,
        ALL,
        _child_late("C++ compiler"),
    ),
    (
        *("C++ compiler hangs in the backward", ways.BackwardCompiler, _TRAINING),
        _child_late("C++ compiler"),
    ),
    ("child loops in Python", ways.CHILD_LOOPS, ALL, _child_late("code generation")),
    (
        *("worker pool waits for ever", ways.CHILD_WAITS_FOR_POOL, ALL),
        _child_late("worker pool"),
    ),
    ("child stopped by SIGSTOP", ways.CHILD_STOPPED, FEW, _child_late("stopped child")),
    ("child stopped, continued later", ways.CHILD_STOPPED_FOR_A_WHILE, FEW, _OVERCOME),
    ("child killed by SIGKILL", ways.CHILD_KILLED, ALL, _error("SIGKILL")),
    ("child dies by SIGSEGV", ways.CHILD_CRASHES, ALL, _error("SIGSEGV")),
    ("child eats memory", ways.ChildEatsMemory, ALL, _error("memory")),
    ("code generation raises", ways.CHILD_RAISES, ALL, _error("planted")),
    ("code generation raises, no child", ways.KeptRaises, ALL, _error("planted")),
    ("first run fails", ways.FirstRunFails, ALL, _FIRST_RUN),
    ("first run of the backward fails", ways.BackwardFails, _TRAINING, _FIRST_RUN),
    ("cache folder not writable", harm.NoCacheFolder, ALL, _error()),
    ("disk full", harm.FullDisk, ALL, _error()),
    ("shared memory full", harm.FullSharedMemory, FEW, _OVERCOME),
    ("no file can be opened", harm.NoFiles, FEW, _error("Too many open files")),
    ("process limit reached", harm.NoProcesses, FEW, _error("thread")),
    ("signal handlers of the user", harm.UserSignals, FEW, _OVERCOME),
    ("cache entries broken", harm.BrokenEntries, ALL, _OVERCOME),
    ("cached libraries broken", harm.BrokenLibraries, ALL, _error()),
    # It cannot be seen from outside that a lock is waited for: so, long enough.
    ("cache locks held", harm.LocksHeld, ALL, _child_late("lock", 40.0)),
)
FAULTS = {
    name: Fault(name, way, situations, **expected)
    for name, way, situations, expected in _ROWS
}
