"""The events of a run: what the compiler did, and the program with it.

Each kind of event is a frozen class, complete when `observe` or `measure` returns it.
`Observation.of` has the events of a class.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from torchproof.records import TorchConfig, shapes
from torchproof.records.blame import whose
from torchproof.records.calls import CALLEE, Argument, Call, Path
from torchproof.records.form_difference import FormDifference
from torchproof.records.frame import Frame
from torchproof.records.guards import FailedGuard, Guard
from torchproof.records.operations import Operation
from torchproof.records.schema import Integer, Record


@dataclass(frozen=True)
class Event(Record):
    """An action of the compiler, or of the program with it.

    `frames` is the stack inside the compiled region, outermost first, and `callers` the
    stack above it; `function` is the code object that was being compiled, and `call`
    the index of the call it happened in, None if unknown.
    """

    compile_id: str | None = None
    frames: tuple[Frame, ...] = ()
    function: Frame | None = None
    call: int | None = None
    callers: tuple[Frame, ...] = ()


# -- what Dynamo did -------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """How often a graph or a skipped frame ran, and in how many calls."""

    count: int
    calls: int


@dataclass(frozen=True)
class CompileEvent(Event):
    """Something that happened while Dynamo compiled a function."""

    entry_call: Call | None = None  # the call that entered the compiled region
    entry: Frame | None = None  # the function compiled first in the same call
    above: tuple[Frame, ...] | None = None  # all frames in the region; None: unknown


@dataclass(frozen=True)
class GraphEvent(CompileEvent):
    """A graph was captured."""

    runs: Runs | None = None  # None: not counted
    operations: tuple[Operation, ...] | None = None  # None: not recorded
    changed: Mapping[str, TorchConfig] = field(default_factory=dict)  # settings
    zeros: tuple[str, ...] = ()  # arguments that were a floating-point zero
    backwards: int = 0  # how often a backward ran through its outputs
    late_backwards: int = 0  # those of them that began after another graph had run


@dataclass(frozen=True)
class BreakReason:
    """Torch's message for a graph break."""

    type: str = ""
    explanation: str = ""
    hints: tuple[str, ...] = ()
    context: str = ""
    gb_id: str | None = None
    page: str | None = None
    rest_is_eager: bool = False  # the rest of the function
    nested: str | None = None  # the type of the break inside a `with` or a loop


@dataclass(frozen=True)
class BreakEvent(CompileEvent):
    """A graph break; `skips` if the frame runs eagerly because of it."""

    reason: BreakReason = BreakReason()
    skips: bool = False
    runs: Runs | None = None  # of the skipped frame, or of the graph before the break
    # Torch logs no break for a frame that it skips before it traces it.
    logged: bool = True


@dataclass(frozen=True)
class ErrorEvent(CompileEvent):
    """An exception that eager does not raise."""

    error: str = ""  # its type
    message: str = ""
    reason: BreakReason = BreakReason()  # as far as the message is one of a break
    runs: Runs | None = None  # of the frame, in eager


@dataclass(frozen=True)
class FailureEvent(ErrorEvent):
    """A function failed to compile; `raised` is None if only a trace tells of it."""

    raised: bool | None = None


@dataclass(frozen=True)
class RaisedEvent(ErrorEvent):
    """A call of the target raised; `where` is the whole stack."""

    phase: str | None = None  # a frame or a backward was compiled; None: nothing was
    where: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class EagerErrorEvent(CompileEvent):
    """A function failed to compile because of an error that eager raises as well."""


@dataclass(frozen=True, kw_only=True)
class SpecializationEvent(CompileEvent):
    """A dynamic size became a constant."""

    sources: tuple[str, ...]
    value: str
    reason: str
    symbol: str
    marks: tuple[tuple[str, int], ...]  # the dimensions that were marked dynamic


@dataclass(frozen=True)
class GuardEvent(CompileEvent):
    """The guards of all graphs of a function failed; `guard` is the cause."""

    guard: Guard | None = None
    failed_guards: tuple[FailedGuard, ...] = ()

    @functools.cached_property
    def origin(self) -> tuple[Path, str] | None:
        """The argument of the entry call that the guard checks, and the rest."""
        if self.entry_call is None or self.guard is None:
            return None
        origin = self.entry_call.origin(self.guard.source)
        if origin and self.entry and origin[0] in (("args",), ("kwargs",)):
            return None  # `*args` of a function that the call reaches are not its own
        return origin

    @property
    def path(self) -> Path | None:
        """The argument that the guard checks; None if it checks something else."""
        return self.origin[0] if self.origin and self.origin[0] != CALLEE else None

    @functools.cached_property
    def argument(self) -> Argument | None:
        """The argument that the guard checks, as the caller wrote it."""
        if self.entry_call is None or self.path is None:
            return None
        return self.entry_call.described(self.path)

    @functools.cached_property
    def callers_guard(self) -> Guard | None:
        """The guard in the caller's words."""
        call, guard = self.entry_call, self.guard
        if call is None or guard is None or self.origin is None:
            return guard
        file = self.function.file if self.function else ""
        if self.origin[0] == CALLEE and file and whose(file) == "user":
            return guard  # in the user's own method, the user calls it `self`
        return replace(
            guard, source=call.words(guard.source), other=call.words(guard.other)
        )


@dataclass(frozen=True)
class RecompileEvent(GuardEvent):
    """A function was compiled again."""


@dataclass(frozen=True)
class LimitEvent(GuardEvent):
    """A function was not compiled again, because it hit the recompile limit."""

    setting: str = "recompile_limit"
    limit: int | None = None


# -- what the program did --------------------------------------------------------------


@dataclass(frozen=True)
class WrapperEvent(Event):
    """A call of torch.compile, and how often its result was called.

    `frames` is where it was called. The counts are None if they were not recorded.
    """

    name: str = ""
    what: str = ""  # module, function...
    module: int | None = None  # a number for each module
    arguments: Mapping[str, str] = field(default_factory=dict)
    off: bool = False  # compilation was switched off
    by_torchproof: bool = False
    in_place: bool = False
    around: tuple[Frame, ...] = ()  # the code objects around the compiled one
    calls: int | None = None
    compiled_calls: int | None = None
    eager_stance: int | None = None  # calls under the stance force_eager
    inlined: bool | None = None  # into another compiled function


@dataclass(frozen=True)
class BypassEvent(Event):
    """Calls at one line that ran a module's own code although it is compiled.

    They call the module that was compiled (then `method` is "forward"), or another
    method of the compiled one.
    """

    model: str = ""  # its class
    module: int = 0  # its number, as in a `WrapperEvent`
    method: str = ""
    count: int = 1


# -- CUDA graphs -----------------------------------------------------------------------


@dataclass(frozen=True)
class DeadTensorEvent(Event):
    """A tensor was held, or even read, after its memory was reused.

    `frames` is where it was produced.
    """

    is_read: bool = True
    role: Literal["output", "gradient"] = "output"
    holder: str | None = None  # what refers to it, as an expression
    operation: str | None = None  # what read it
    times: int = 1
    overwriter: tuple[Frame, ...] = ()
    reader: tuple[Frame, ...] = ()
    stored: tuple[Frame, ...] = ()
    raised: str = ""  # torch's own error about it


@dataclass(frozen=True)
class CaptureEvent(Event):
    """What happened to a graph that may become a CUDA graph.

    `site` is the stack of the call that ran it.
    """

    site: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraphSkipEvent(CaptureEvent):
    """Torch does not capture a graph. The counts are None if it was never run."""

    reason: str
    ungraphed: int | None = None  # runs without a CUDA graph
    runs: int | None = None


@dataclass(frozen=True, kw_only=True)
class GraphSplitEvent(CaptureEvent):
    """An operation was left out of a CUDA graph."""

    reason: str
    operation: str


@dataclass(frozen=True)
class InputSize(Record):
    """Shapes of the inputs of a graph, and its runs with them by how they ran."""

    shapes: tuple[tuple[int, ...], ...]
    runs: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class RecordingEvent(CaptureEvent):
    """The recordings and replays of one graph."""

    phase: str
    turns: Mapping[str, int]  # runs by how they ran
    sizes: tuple[InputSize, ...]
    distinct: int  # the number of input sizes
    again: Mapping[str, int]  # recordings by cause
    moved: tuple[str, ...]  # inputs whose address changed
    uses: Mapping[str, tuple[Frame, ...]]  # of those
    since: int  # runs since the last recording
    pool_bytes: Annotated[int, Integer]  # how much the pool grew for it

    @property
    def runs(self) -> int:
        return sum(self.turns.values())

    @property
    def replays(self) -> int:
        return self.turns.get("replayed", 0)


@dataclass(frozen=True, kw_only=True)
class SyncEvent(Event):
    """A line at which the host waits for the device."""

    explicit: bool
    inside: bool  # a compiled call
    count: int
    calls: int  # in which it waited
    of: int  # all compiled calls


# -- answers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerEvent(Event):
    """Compiled outputs differ from eager's.

    `layer` is the first layer of the compiler that gives other outputs.
    """

    layer: str | None = None
    numerics: shapes.Numerics = field(default_factory=shapes.Numerics)


@dataclass(frozen=True)
class WrongAnswerEvent(AnswerEvent):
    """The compiler computes other values, or returns them in another form."""

    operation: str | None = None
    gives: str | None = None  # the type of its result
    undeclared: tuple[str, ...] = ()  # arguments that it changes and does not declare
    value: shapes.Numerics = field(default_factory=shapes.Numerics)
    asks: str | None = None  # the function that says whether code is being compiled
    form: FormDifference | None = None


@dataclass(frozen=True, kw_only=True)
class StaleAnswerEvent(AnswerEvent):
    """Compiled code ignores a change that eager sees."""

    what: str
    name: str


E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Observation:
    """The result of one run of a target. Counts that were not observed are None."""

    events: tuple[Event, ...]
    environment: shapes.Environment
    calls: int | None = None
    compiled_calls: int | None = None
    ending: str = "finished"  # finished, timeout, interrupted, crashed
    exit_code: int | None = None
    error: str | None = None  # one line: why the target itself could not run
    # What Dynamo traced: file -> qualified function -> lines; None where not observed.
    traced: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None
    # What was compiled, and what its calls may run: file -> qualified functions.
    compiled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # The number of calls whose arguments have a form: `(float32[4, 8], 3)`.
    forms: Mapping[str, int] = field(default_factory=dict)
    # The features that the installed torch has no hooks for, with what it lacks.
    lacks: Mapping[str, str] = field(default_factory=dict)
    # The factories of a script, as targets: `model.py:make`.
    factories: tuple[str, ...] = ()
    as_written: bool = False  # the user asked not to compile the target
    # The compiler's settings that differed from their defaults in some compilation.
    settings: TorchConfig = field(default_factory=dict)

    @functools.cached_property
    def _index(self) -> dict[tuple[type[Event], ...], tuple[Any, ...]]:
        return {}

    def of(self, *kinds: type[E]) -> tuple[E, ...]:
        """The events of these classes, in the order in which they happened."""
        if kinds not in self._index:
            self._index[kinds] = tuple(e for e in self.events if isinstance(e, kinds))
        return self._index[kinds]
