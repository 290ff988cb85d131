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
_LATE = {"kind": "deadline", "deadline_s": HANG_S, "words": "took too long"}
_CHILD_LATE = {**_LATE, "backend": "inductor", "deadline_s": INDUCTOR_HANG_S}
# It cannot be seen from outside that a lock is waited for: so, long enough.
_LOCKED = {**_CHILD_LATE, "deadline_s": 40.0, "phase": "lock"}
_GXX = {**_CHILD_LATE, "phase": "C++ compiler"}
_ERROR = {"kind": "compile error", "backend": "inductor"}
_PLANTED = {"kind": "compile error", "words": "planted in a fake kernel"}
_FIRST_RUN = {**_ERROR, "kind": "first run", "words": "planted in a first run"}
_OVERCOME = {"backend": "inductor"}

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("tracing loops in Python", ways.LoopsInPython, phase="tracing", **_LATE),
        Fault(
            "tracing loops, the clock jumps",
            ways.ClockJumps,
            FEW,
            phase="tracing",
            **_LATE,
        ),
        Fault(
            "AOTAutograd loops in Python",
            ways.LoopsInAutograd,
            phase="AOTAutograd",
            **_LATE,
        ),
        Fault("AOTAutograd raises", ways.RaisesInAutograd, **_PLANTED),
        Fault("C++ compiler hangs", ways.Compiler, **_GXX),
        Fault("C++ compiler hangs, no child", ways.KeptCompiler, **_GXX),
        Fault(
            "C++ compiler hangs in the backward",
            ways.BackwardCompiler,
            _TRAINING,
            **_GXX,
        ),
        Fault(
            "child loops in Python",
            ways.CHILD_LOOPS,
            phase="code generation",
            **_CHILD_LATE,
        ),
        Fault(
            "worker pool waits for ever",
            ways.CHILD_WAITS_FOR_POOL,
            phase="worker pool",
            **_CHILD_LATE,
        ),
        Fault(
            "child stopped by SIGSTOP",
            ways.CHILD_STOPPED,
            FEW,
            phase="stopped child",
            **_CHILD_LATE,
        ),
        Fault(
            "child stopped, continued later",
            ways.CHILD_STOPPED_FOR_A_WHILE,
            FEW,
            **_OVERCOME,
        ),
        Fault("child killed by SIGKILL", ways.CHILD_KILLED, words="SIGKILL", **_ERROR),
        Fault("child dies by SIGSEGV", ways.CHILD_CRASHES, words="SIGSEGV", **_ERROR),
        Fault("child eats memory", ways.ChildEatsMemory, words="memory", **_ERROR),
        Fault("code generation raises", ways.CHILD_RAISES, words="planted", **_ERROR),
        Fault(
            "code generation raises, no child",
            ways.KeptRaises,
            words="planted",
            **_ERROR,
        ),
        Fault("first run fails", ways.FirstRunFails, **_FIRST_RUN),
        Fault(
            "first run of the backward fails",
            ways.BackwardFails,
            _TRAINING,
            **_FIRST_RUN,
        ),
        Fault("cache folder not writable", harm.NoCacheFolder, **_ERROR),
        Fault("disk full", harm.FullDisk, **_ERROR),
        Fault("shared memory full", harm.FullSharedMemory, FEW, **_OVERCOME),
        Fault(
            "no file can be opened",
            harm.NoFiles,
            FEW,
            words="Too many open files",
            **_ERROR,
        ),
        Fault("process limit reached", harm.NoProcesses, FEW, words="thread", **_ERROR),
        Fault("signal handlers of the user", harm.UserSignals, FEW, **_OVERCOME),
        Fault("cache entries broken", harm.BrokenEntries, **_OVERCOME),
        Fault("cached libraries broken", harm.BrokenLibraries, **_ERROR),
        Fault("cache locks held", harm.LocksHeld, **_LOCKED),
    )
}
