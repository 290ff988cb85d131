"""Compiles a step while its uncompiled recording answers the calls (`wait=False`).

Each recording is upgraded through the stages of its snapshot. A stage traces the step
between two calls and sends its graphs to the compile process. Between two later calls,
it loads the code, records it, compares it with eager, and times it against the
recording in use; the faster one answers from then on. Each call gets the answer of one
recording, and a stage that fails leaves the recording in use.

Threads of this process import the compiler and trace whole steps. The rest is done in
small actions, at most one before a call, and within a `PauseBudget`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchproof.process import forks
from torchproof.runtime import compile_job
from torchproof.runtime.codegen_worker import ChildError
from torchproof.runtime.cudagraph.call_inputs import Call, tensors_in
from torchproof.runtime.cudagraph.graph_status import (
    RecordLater,
    StageStatus,
    Stopped,
)
from torchproof.runtime.cudagraph.partial_trace import Loading, PartialTrace
from torchproof.strategies import NotApplicable
from torchproof.torch_private import early_start, remote_graphs, thread_state

if TYPE_CHECKING:
    from torchproof.runtime.cudagraph.preparation import Preparation
    from torchproof.runtime.cudagraph.recorder import Clones, Recorder, Recording

log = logging.getLogger("torchproof")

DEADLINE_S = 900.0  # for the code of one stage
# Calls may wait this long at once for recordings, traces and imports, and then for this
# share of the time: a service with many shapes goes on answering.
_FIRST_PAUSES_S = 6.0
_PAUSE_SHARE = 0.2
_ROUNDS = 7  # of timing, each with some replays of both recordings
_REPLAYS = 3
_TRIES = 3  # to trace a step that changes meanwhile
_UNDER_WAY = ("waiting", "compiling")
Make = Callable[["Preparation"], "Recorder"]
Action = Callable[["Moment"], "Recording | None"]
Within = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass
class Stage:
    """One strategy; all recordings of a snapshot share its traced graphs."""

    name: str
    backend: remote_graphs.Deferred
    traced: PartialTrace
    prepare: Callable[[], Preparation]
    codes: dict[int, bytes] = field(default_factory=dict)  # not loaded, by number
    sent: int = 0  # the number of graphs that the compile process got
    compilations: list[Compilation] = field(default_factory=list)

    @functools.cached_property
    def preparation(self) -> Preparation:
        """Made when it is first used: that loads the compiler."""
        return self.prepare()

    def compile(self, deadline_s: float) -> Compilation | None:
        """Sends graphs that were not sent yet; returns what has to be waited for."""
        numbers = range(self.sent, len(self.backend.graphs))
        if numbers:
            self.sent = numbers.stop
            self.compilations.append(Compilation(self, numbers, deadline_s))
        return self.compilations[-1] if self.compilations else None

    def load_one(self) -> bool:
        """Loads the code of one graph; whether there was any."""
        if not self.codes:
            return False
        number = min(self.codes)
        self.backend.graphs[number].load(self.codes.pop(number))
        return True


class Compilation:
    """Sends the graphs of a stage to the compile process, from a waiting thread."""

    def __init__(self, stage: Stage, numbers: range, deadline_s: float) -> None:
        self.started = time.monotonic()
        self.seconds: float | None = None
        self.failure: str | None = None
        self._stage = stage
        self._numbers = numbers
        self._earlier = stage.compilations[-1] if stage.compilations else None
        self._until = self.started + deadline_s
        forks.register(self)
        thread = threading.Thread(
            target=self._compile, name="torchproof-stage", daemon=True
        )
        thread.start()

    @property
    def is_done(self) -> bool:
        """Another recording may have sent graphs that this one needs as well."""
        earlier = self._earlier
        return self.seconds is not None and (earlier is None or earlier.is_done)

    def why_failed(self) -> str | None:
        """The failure of this compilation, or of one whose graphs it may need."""
        if self.failure is not None or self._earlier is None:
            return self.failure
        return self._earlier.why_failed()

    def after_fork(self) -> None:
        """The thread exists in the parent only."""
        if self.seconds is None:
            self.failure = "this process is a fork of the one that compiles"
            self.seconds = 0.0

    def _compile(self) -> None:
        worker = compile_job.background_worker()
        try:
            for number in self._numbers:
                graph = self._stage.backend.graphs[number]
                self._stage.codes[number] = worker.send(
                    graph.written, until=self._until, kind="graph"
                )
        except (ChildError, OSError) as error:
            self.failure = str(error)
        except Exception as error:  # otherwise the stage would run without its code
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self.seconds = time.monotonic() - self.started


class Upgrade:
    """Takes one recording through the stages, with at most one action before a call."""

    def __init__(self, progress: Progress, stages: Iterable[Stage]) -> None:
        self._progress = progress
        self._stages = iter(stages)
        self._stage: Stage | None = None
        self._in_use = _Entry("eager")
        self._status = self._in_use
        self._compilation: Compilation | None = None
        self._actions: deque[Action] = deque()
        self._loading: Loading | None = None
        self._tries = 0

    @property
    def is_over(self) -> bool:
        return self._stage is None

    def begin(self, recording: Recording) -> None:
        """An uncompiled recording is in use."""
        self._in_use = self._progress.add("eager", recording)
        self._in_use.took_over(self._progress.seconds, None)
        self._next_stage(recording)

    def end(self) -> None:
        """The recording is no longer used: the state that it needs has changed."""
        self._stage = None
        for entry in (self._in_use, self._status):
            entry.state = "ended"

    @property
    def is_due(self) -> bool:
        """Whether the next action can be done without waiting for a compiler."""
        if self.is_over or not self._progress.pauses.allowed:
            return False
        if thread_state.another_thread_compiles() or self.works_in_background:
            return False
        compiles = self._compilation is not None and not self._compilation.is_done
        return not (compiles and self._actions[0] == self._load)

    @property
    def works_in_background(self) -> bool:
        loads = self._loading is not None and not self._loading.is_done
        return loads or (not self.is_over and self._current.traced.is_under_way)

    def _load_compiler(self, load: Callable[[], None]) -> None:
        self._progress.disturb(self)
        self._loading = _loading(load)

    def advance(self, moment: Moment) -> Recording | None:
        """Does the next action, which is due; returns a recording that takes over.

        That recording has not executed the call: its effects so far are undone.
        """
        action = self._actions.popleft()
        entry = self._status  # an action can go on to the next stage
        begin = time.monotonic()
        try:
            with moment.within():
                return action(moment)
        except RecordLater:
            self._again(moment, "the step could not be traced yet")
        except remote_graphs.NotDeferred as error:
            self._again(moment, str(error))
        except (Stopped, NotApplicable) as error:
            self._fail(moment, str(error))
        except Exception as error:
            self._fail(moment, f"{type(error).__name__}: {error}")
        finally:
            pause = time.monotonic() - begin
            entry.pause_s = max(entry.pause_s or 0.0, pause)
            self._progress.pauses.spend(pause)
        return None

    def _next_stage(self, recording: Recording) -> None:
        self._stage = next(self._stages, None)
        self._compilation = None
        self._tries = 0
        if self._stage is None:
            return
        self._status = self._progress.add(self._stage.name, recording)
        self._start()

    def _start(self) -> None:
        self._load_compiler(remote_graphs.load_tracer)
        self._actions = deque([self._trace])

    def _again(self, moment: Moment, why: str) -> None:
        """The step was in another state than when it was traced."""
        self._tries += 1
        if self._tries >= _TRIES:
            self._fail(moment, why)
        else:
            self._compilation = None
            self._start()

    def _fail(self, moment: Moment, why: str) -> None:
        self._status.state, self._status.why = "failed", why
        log.warning("graph: stage %s is not used: %s", self._status.strategy, why)
        self._next_stage(moment.recording)

    # -- actions, each between two calls -----------------------------------------------

    def _trace(self, moment: Moment) -> None:
        """Traces the next part of the step."""
        remote_graphs.probe()
        stage = self._current
        self._status.state = "compiling"
        recorder = moment.recorder(stage.preparation)
        with stage.traced.run():
            recorder.trace(moment.call, like=moment.recording)
        if stage.traced.skipped:
            self._progress.disturb(self)
            self._actions = deque([self._trace])
            return
        if not stage.backend.graphs:
            raise NotApplicable("torch compiles nothing of this step")
        self._compilation = stage.compile(self._progress.deadline_s)
        # This overlaps with the compilation.
        self._load_compiler(early_start.import_compiler)
        self._actions = deque([self._load])

    def _load(self, moment: Moment) -> Recording | None:
        """Loads one graph, so that no call waits for all; then takes over."""
        self._compiled()
        if not self._current.load_one():
            return self._take_over(moment)
        self._actions = deque([self._load])
        return None

    def _take_over(self, moment: Moment) -> Recording | None:
        stage = self._current
        stage.backend.frozen = True
        try:
            new = moment.recorder(stage.preparation).record(
                moment.call, moment.clones, like=moment.recording
            )
        finally:
            stage.backend.frozen = False
        if not self._is_faster(moment, new):
            self._status.state = "not faster"
            self._next_stage(moment.recording)
            return None
        self._in_use.state = "replaced"
        self._in_use = self._status
        self._in_use.took_over(self._progress.seconds, moment.number)
        self._next_stage(new)
        return new

    def _is_faster(self, moment: Moment, new: Recording) -> bool:
        """Times the new recording and undoes its effects; drops it if it is slower."""
        is_faster = False
        try:
            old_s, new_s = timed(moment.recording, new, moment.call)
            self._status.measured(old_s, new_s)
            is_faster = new_s < old_s
        finally:
            new.roll_back()
            if not is_faster:
                new.drop()
        return is_faster

    def _compiled(self) -> None:
        """Notes a finished compilation; raises if it failed."""
        if self._compilation is None:
            return
        self._status.compile_s = self._compilation.seconds
        if (why := self._compilation.why_failed()) is not None:
            raise NotApplicable(why)

    @property
    def _current(self) -> Stage:
        assert self._stage is not None
        return self._stage


@dataclass(frozen=True)
class Moment:
    """What an action may use: the next call, and the recording that would answer it."""

    recording: Recording
    call: Call
    number: int
    recorder: Make
    clones: Clones | None
    within: Within  # the context around each action


@dataclass
class _Entry:
    """One stage of one recording, for the status."""

    strategy: str
    shapes: tuple[str, ...] = ()
    state: str = "waiting"
    compile_s: float | None = None
    pause_s: float | None = None
    at_s: float | None = None
    at_call: int | None = None
    step_ms: float | None = None
    gain: float | None = None
    why: str | None = None

    def measured(self, old_s: float, new_s: float) -> None:
        self.step_ms = 1e3 * new_s
        self.gain = old_s / new_s if new_s > 0 else None

    def took_over(self, at_s: float, at_call: int | None) -> None:
        self.state, self.at_s, self.at_call = "in use", at_s, at_call


class PauseBudget:
    """How long calls may still wait for what is done between them.

    A pause can be longer than what is left; the next one then comes later.
    """

    def __init__(self) -> None:
        self._left_s = _FIRST_PAUSES_S
        self._counted = time.monotonic()

    @property
    def allowed(self) -> bool:
        now = time.monotonic()
        gained = _PAUSE_SHARE * (now - self._counted)
        self._left_s = min(_FIRST_PAUSES_S, self._left_s + gained)
        self._counted = now
        return self._left_s > 0

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds


class Progress:
    """The stages of one graphed step, and when each took over."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self.started = time.monotonic()
        self.entries: list[_Entry] = []
        self.pauses = PauseBudget()
        self._disturbing: list[Upgrade] = []  # whose threads change torch's state

    def start_compiler(self) -> None:
        """Starts the compile process, unless it runs already."""
        compile_job.background_worker().warm()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def is_over(self) -> bool:
        """Whether no stage waits for its code."""
        return all(each.state not in _UNDER_WAY for each in self.entries)

    @property
    def is_disturbed(self) -> bool:
        return bool(self._disturbing)

    def is_settled(self) -> bool:
        """Whether a thread has ended that may have changed torch's state; once."""
        if not self._disturbing or thread_state.another_thread_compiles():
            return False
        if any(each.works_in_background for each in self._disturbing):
            return False
        self._disturbing = []
        return True

    def disturb(self, upgrade: Upgrade) -> None:
        self._disturbing.append(upgrade)

    def begin(self, stages: Iterable[Stage], recording: Recording) -> Upgrade:
        upgrade = Upgrade(self, stages)
        upgrade.begin(recording)
        return upgrade

    def add(self, strategy: str, recording: Recording) -> _Entry:
        self.entries.append(_Entry(strategy, recording.shapes))
        return self.entries[-1]

    def status(self) -> tuple[StageStatus, ...]:
        return tuple(StageStatus(**vars(entry)) for entry in self.entries)


_loading = functools.cache(Loading)  # once in a process


def timed(old: Recording, new: Recording, call: Call) -> tuple[float, float]:
    """The median seconds of a replay of each; the caller undoes their effects."""
    seconds: dict[Recording, list[float]] = {old: [], new: []}
    for _ in range(_ROUNDS):
        for recording, measured in seconds.items():
            recording.start(tensors_in(call))
            measured.append(recording.capture.seconds_of(_REPLAYS))
    return statistics.median(seconds[old]), statistics.median(seconds[new])
