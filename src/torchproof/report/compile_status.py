"""Words for what the processes of a run are compiling at this moment.

`torch`'s own events say which function, graph and phase, and since when. A sample of
the stack adds what they do not tell: a lock, a compiler that is asked for its version,
the user's line that runs while nothing compiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchproof.records import ProcessTimeline, Span
from torchproof.report import numbers

_NS = 1e9
_SILENT_S = 5.0  # a process that samples its stacks writes once in a second
_STOPPED = "it is stopped by a signal or a debugger"
_BLOCKED = "probably native code holds the GIL"
_SAMPLED_S = 1.5  # after this time in a phase, a sample of it exists
_COMPILING = {"compile", "phase", "cudagraph"}  # categories of spans
_WAITING = "waiting for kernels"
# Phases of a stack that say more than torch's event around them.
_FINER = {
    "C++ compiler",
    "Triton compiler",
    "autotuning",
    "collective",
    "graph recording",
    "lock",
    "symbolic shapes",
    "worker pool",
}


@dataclass(frozen=True)
class Status:
    """What a process does; `seconds` since this compilation or pause began."""

    what: str  # what goes on, without times
    head: str
    rest: str
    seconds: float
    compiles: bool
    joint: str = "; "

    @property
    def line(self) -> str:
        return f"{self.head}{self.joint}{self.rest}" if self.rest else self.head


@dataclass
class LiveProcess(ProcessTimeline):
    """A process of which only the present is kept, and how much it compiled."""

    compiled: int = 0
    last: str = ""  # what was compiled last
    idle_since_ns: int = 0
    ended_ns: dict[str, int] = field(default_factory=dict)  # the last phase, by track
    is_stopped: bool = False
    lost: str | None = None  # why nothing more will be heard of a process that runs

    def add(self, line: dict[str, Any]) -> None:
        super().add(line)
        for span in self.spans:
            if span.end_ns is not None and span.category in _COMPILING:
                self.idle_since_ns = max(self.idle_since_ns, span.end_ns)
                self.ended_ns[span.track] = span.end_ns
                self._count(span)
        if line["do"] == "process":  # a worker may become another
            self.idle_since_ns, self.compiled = self.begin_ns, 0
        self.spans = self.unfinished
        self.moments.clear()

    def _count(self, span: Span) -> None:
        if span.category != "compile":
            return
        self.compiled += 1
        self.last = _label(span)

    # -- the present -------------------------------------------------------------------

    def statuses(self, now_ns: int) -> list[Status]:
        """One for each thread that compiles; those that it waits for are its phase."""
        tracks: dict[str, list[Span]] = {}
        for span in self.spans:
            if span.category in _COMPILING:
                tracks.setdefault(span.track, []).append(span)
        threads = list(tracks.values())
        frames = [t for t in threads if any(s.category == "compile" for s in t)]
        if len(frames) == 1 and frames[0][-1].name == _WAITING:
            helpers = [each for each in threads if each is not frames[0]]
            threads = [[*frames[0], *min(helpers, key=_begin, default=())]]
        known_ns = self._known_until(now_ns)
        known = [self._compiling(spans, known_ns) for spans in threads]
        return [self._with_silence(each, now_ns) for each in known]

    def idle(self, now_ns: int) -> Status | None:
        """None for a process that waits for a command."""
        commands = [each.name for each in self.spans if each.category == "command"]
        if self.runs_commands and not commands:
            return None
        known_ns = self._known_until(now_ns)
        return self._with_silence(self._idle(known_ns, commands), now_ns)

    def _idle(self, now_ns: int, commands: Sequence[str]) -> Status:
        seconds = (now_ns - self.idle_since_ns) / _NS
        head = f"{self._who()}nothing compiled yet, {numbers.duration(seconds)}"
        rest = []
        if self.compiled:
            head = f"{self._who()}no compilation for {numbers.duration(seconds)}"
            amount = numbers.amount(self.compiled, "compilation")
            rest.append(f"{amount} before, the last of {self.last}")
        rest[:0] = [*(f"in {name}" for name in commands[-1:]), *self._where()]
        return Status(f"idle {self.pid}", head, "; ".join(rest), seconds, False)

    def _compiling(self, spans: Sequence[Span], now_ns: int) -> Status:
        frame = next((each for each in spans[::-1] if each.category == "compile"), None)
        first = frame or spans[0]
        seconds = (now_ns - first.begin_ns) / _NS
        phase, since_ns = self._phase(spans, now_ns)
        in_phase = (now_ns - since_ns) / _NS
        lasts = numbers.duration(in_phase)
        if frame is None:
            what = f"{self._who()}{phase} at run time"
            return Status(what, f"{what}, {lasts}", "", seconds, True)
        told = [f"{phase}, {lasts}", *_why(frame)]
        if seconds - in_phase >= 1:
            told.insert(1, f"{numbers.duration(seconds)} in all")
        head = f"{self._who()}compiling {_label(frame)}"
        what = f"{head}: {phase}"
        return Status(what, head, "; ".join(told), seconds, True, joint=": ")

    def _phase(self, spans: Sequence[Span], now_ns: int) -> tuple[str, int]:
        """The innermost phase that has a name, and since when."""
        known = [
            each
            for each in spans
            if each.category != "compile"
            and each.details.get("torch_name") != each.name
        ]
        innermost = known[-1] if known else spans[-1]
        outermost = "AOTAutograd" if innermost.details.get("backward") else "Dynamo"
        name = innermost.name if known else outermost
        stack = self.stacks.get(innermost.track)
        # A sample may be of a phase that has ended since.
        alone_ns = max(innermost.begin_ns, self.ended_ns.get(innermost.track, 0))
        if stack is None or (now_ns - alone_ns) / _NS <= _SAMPLED_S:
            return name, innermost.begin_ns
        if stack.phase not in _FINER or stack.phase == name:
            return name, innermost.begin_ns
        return f"{name} ({stack.phase})", max(stack.since_ns, alone_ns)

    def _where(self) -> Iterator[str]:
        """The user's line that runs, as the last sample found it."""
        if self.exits:
            yield "the interpreter is exiting"
        stack = self.stacks.get("main thread")
        if stack is not None and stack.place and self.samples:
            yield f"at {stack.place} in {stack.function}"

    # -- silence -----------------------------------------------------------------------

    def _why_silent(self, now_ns: int) -> str | None:
        """None for a process that was heard lately, or asked to be silent."""
        if self.lost or self.is_stopped:
            return self.lost or _STOPPED
        silent = self.samples and (now_ns - self.last_ns) / _NS > _SILENT_S
        return _BLOCKED if silent else None

    def _known_until(self, now_ns: int) -> int:
        return self.last_ns if self._why_silent(now_ns) else now_ns

    def _with_silence(self, known: Status, now_ns: int) -> Status:
        """A state that was known last is not said to be the present one."""
        if (why := self._why_silent(now_ns)) is None:
            return known
        seconds = (now_ns - self.last_ns) / _NS
        what = "not observed" if self.lost else "no sign of life"
        head = f"{self._who()}{what} for {numbers.duration(seconds)}: {why}"
        rest = f"until then {known.line.removeprefix(self._who())}"
        return Status(f"{known.what}; {why}", head, rest, seconds, known.compiles)

    def _who(self) -> str:
        return f"{self.name}: " if self.runs_commands else ""


def _begin(spans: Sequence[Span]) -> int:
    return spans[0].begin_ns


def _label(frame: Span) -> str:
    """`step (train.py:7) [0/0]`; a backward graph has the name of its function."""
    details = frame.details
    function, place = details.get("function"), details.get("place")
    name = f"{function} ({place})" if place else str(function)
    if details.get("backward"):
        name = f"the backward graph of {name}" if function else "a backward graph"
    return f"{name} [{details.get('compile_id')}]"


def _why(frame: Span) -> Iterator[str]:
    if frame.details.get("backward"):
        return
    if reason := frame.details.get("reason"):
        yield f"recompile: {reason}"
    elif not str(frame.details.get("compile_id")).endswith("/0"):
        yield "recompile"
    elif frame.details.get("after_break"):
        yield "the rest of the function, after a graph break"
    else:
        yield "first compilation"


def statuses(processes: Sequence[LiveProcess], now_ns: int) -> list[Status]:
    """All that compiles now; if nothing does, what the processes do instead."""
    compiling = [status for each in processes for status in each.statuses(now_ns)]
    if compiling:
        return compiling
    idle = [each.idle(now_ns) for each in processes]
    return [status for status in idle if status is not None]
