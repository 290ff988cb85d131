"""Compiles a step while its uncompiled recording answers the calls (`wait=False`).

Each recording is upgraded through the stages of its snapshot. A stage traces the step
between two calls and sends its graphs to the compile process. Once their code is
loaded, it records the step, compares it with eager, and times it against the recording
in use; the faster one answers from then on. Each call gets the answer of one recording,
and a stage that fails leaves the recording in use.

Threads of this process import the compiler, trace whole steps and load code. The rest
is done in small actions, at most one before a call, and for a share of the time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import statistics
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

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
    from torchproof.runtime.cudagraph.recorder import Recorder, Recording

log = logging.getLogger("torchproof")

DEADLINE_S = 900.0  # for the code of one stage
# Calls may wait this long at once for recordings and traces, and then for this share of
# the time: a service with many shapes goes on answering.
_FIRST_PAUSES_S = 6.0
_PAUSE_SHARE = 0.2
_ROUNDS = 7  # of timing, each with some replays of both recordings
_FEWEST_ROUNDS = 3  # if they take longer than this
_ROUNDS_S = 0.4
_REPLAYS = 3  # in a round, unless one takes longer than this
_REPLAY_S = 0.01
_TRIES = 3  # to trace a step that changes meanwhile
_UNDER_WAY = ("waiting", "compiling")
Within = Callable[[], contextlib.AbstractContextManager[Any]]
Ready = Callable[[], bool]


@dataclass(eq=False)
class Stage:
    """One strategy; all recordings of a snapshot share its traced graphs."""

    name: str
    backend: remote_graphs.Deferred
    traced: PartialTrace
    prepare: Callable[[], Preparation]
    failure: str | None = None  # of the compile process
    _sent: int = 0  # the number of graphs that the compile process got
    _codes: dict[int, bytes] = field(default_factory=dict)  # not loaded, by number
    _compiled: dict[int, float] = field(default_factory=dict)  # when, by number

    @functools.cached_property
    def preparation(self) -> Preparation:
        """Made when it is first used: that loads the compiler."""
        return self.prepare()

    def send(self, deadline_s: float) -> int:
        """Sends graphs that were not sent yet; returns how many a recording needs."""
        numbers = range(self._sent, len(self.backend.graphs))
        if numbers:
            forks.register(self)
            until = time.monotonic() + deadline_s
            threading.Thread(
                target=self._compile,
                args=(numbers, until),
                name="torchproof-stage",
                daemon=True,
            ).start()
            self._sent = numbers.stop  # an interrupt before leaves them to be sent
        return self._sent

    def _compile(self, numbers: range, until: float) -> None:
        worker = compile_job.background_worker()
        try:
            for number in numbers:
                graph = self.backend.graphs[number]
                self._codes[number] = worker.send(
                    graph.written, until=until, kind="graph"
                )
                self._compiled[number] = time.monotonic()
        except (ChildError, OSError) as error:
            self.failure = str(error)
        except Exception as error:  # otherwise the stage would run without its code
            self.failure = f"{type(error).__name__}: {error}"

    def after_fork(self) -> None:
        """The thread exists in the parent only."""
        if len(self._compiled) < self._sent:
            self.failure = "this process is a fork of the one that compiles"

    def is_compiled(self, count: int) -> bool:
        """Whether the first graphs have code, or no graph gets any more."""
        return self.failure is not None or self._compiled.keys() >= {*range(count)}

    def compiled_at(self, count: int) -> float:
        """When that was; raises if the compile process failed."""
        if self.failure is not None:
            raise NotApplicable(self.failure)
        return max(self._compiled[number] for number in range(count))

    def load(self, count: int) -> None:
        """Loads the code of the first graphs, as far as it is not loaded."""
        for number in range(count):
            if (code := self._codes.get(number)) is not None:
                self.backend.graphs[number].load(code)
                self._codes.pop(number, None)


@dataclass(frozen=True)
class Moment:
    """What an action may use: the next call, and the recording that would answer it."""

    recording: Recording
    call: Call
    number: int
    recorder: Callable[[Preparation], Recorder]
    within: Within  # the context around each action


class Upgrade:
    """Takes one recording through the stages, with at most one action before a call.

    The actions are the parts of a generator, which yields before each of them what the
    action has to wait for, and gets the moment of the action.
    """

    def __init__(
        self, progress: Progress, stages: Iterable[Stage], recording: Recording
    ) -> None:
        self._progress = progress
        self._in_use = self._entry = progress.add("eager", recording)
        self._in_use.state, self._in_use.at_s = "in use", progress.seconds
        self._loading: Loading | None = None
        self._tracing: PartialTrace | None = None
        self._new: Recording | None = None
        self._actions = self._through(stages, recording)
        self._is_ready = next(self._actions, None)

    @property
    def is_over(self) -> bool:
        return self._is_ready is None

    def end(self) -> None:
        """The recording is no longer used: the state that it needs has changed."""
        self._is_ready = None
        for entry in (self._in_use, self._entry):
            if entry.state in ("in use", *_UNDER_WAY):
                entry.state = "ended"

    @property
    def is_due(self) -> bool:
        """Whether the next action can be done without waiting for a compiler."""
        return (
            self._is_ready is not None
            and self._progress.may_pause
            and not thread_state.another_thread_compiles()
            and not self.works_in_background
            and self._is_ready()
        )

    @property
    def works_in_background(self) -> bool:
        loads = self._loading is not None and not self._loading.is_done
        traces = self._tracing is not None and self._tracing.is_under_way
        return loads or (traces and not self.is_over)

    def advance(self, moment: Moment) -> Recording | None:
        """Does the next action, which is due; returns a recording that takes over.

        That recording has not executed the call: its effects so far are undone.
        """
        self._new = None
        entry = self._entry  # an action can go on to the next stage
        begin = time.monotonic()
        try:
            self._is_ready = self._actions.send(moment)
        except StopIteration:
            self._is_ready = None
        except BaseException:  # an interrupt, which has ended the generator as well
            self._is_ready = None
            self._fail("interrupted")
            raise
        finally:
            pause = time.monotonic() - begin
            entry.pause_s = max(entry.pause_s or 0.0, pause)
            self._progress.paused(pause)
        return self._new

    # -- actions, each between two calls -----------------------------------------------

    def _through(
        self, stages: Iterable[Stage], recording: Recording
    ) -> Generator[Ready, Moment]:
        for stage in stages:
            self._entry = self._progress.add(stage.name, recording)
            try:
                yield from self._tried(stage)
            except (Stopped, NotApplicable) as error:
                self._fail(str(error))
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        self._entry.state, self._entry.why = "failed", why
        log.warning("graph: stage %s is not used: %s", self._entry.strategy, why)

    def _tried(self, stage: Stage) -> Generator[Ready, Moment]:
        """Tries again if the step was in another state than when it was traced."""
        why = ""
        for _ in range(_TRIES):
            try:
                count = yield from self._trace(stage)
                yield from self._take_over(stage, count)
                return
            except RecordLater:
                why = "the step could not be traced yet"
            except remote_graphs.NotDeferred as error:
                why = str(error)
        raise NotApplicable(why)

    def _trace(self, stage: Stage) -> Generator[Ready, Moment, int]:
        """Traces the step, in parts, and sends it; the number of graphs it needs."""
        self._tracing = stage.traced
        self._loading = _loading(remote_graphs.load_tracer)
        while True:
            moment = yield _at_once
            with moment.within():
                remote_graphs.probe()
                self._entry.state = "compiling"
                recorder = moment.recorder(stage.preparation)
                with stage.traced.run():
                    recorder.trace(moment.call, like=moment.recording)
            if not stage.traced.skipped:
                break
        if not stage.backend.graphs:
            raise NotApplicable("torch compiles nothing of this step")
        return stage.send(self._progress.deadline_s)

    def _take_over(self, stage: Stage, count: int) -> Generator[Ready, Moment]:
        """Waits for the code, loads and records it, and answers if it is faster."""
        begin = time.monotonic()
        self._loading = _loading(early_start.import_compiler)  # meanwhile
        yield functools.partial(stage.is_compiled, count)
        self._entry.compile_s = max(0.0, stage.compiled_at(count) - begin)
        self._loading = Loading(_on_this_device(functools.partial(stage.load, count)))
        moment = yield _at_once
        with moment.within():
            stage.load(count)  # what failed in the thread
            stage.backend.frozen = True
            try:
                new = moment.recorder(stage.preparation).record(
                    moment.call, like=moment.recording
                )
            finally:
                stage.backend.frozen = False
            if not self._is_faster(moment, new):
                self._entry.state = "not faster"
                return
        self._in_use.state = "replaced"
        self._in_use, self._new = self._entry, new
        self._entry.state, self._entry.at_call = "in use", moment.number
        self._entry.at_s = self._progress.seconds

    def _is_faster(self, moment: Moment, new: Recording) -> bool:
        """Times the new recording and undoes its effects; drops it if it is slower."""
        is_faster = False
        try:
            old_s, new_s = timed(moment.recording, new, moment.call)
            self._entry.step_ms = 1e3 * new_s
            self._entry.gain = old_s / new_s if new_s > 0 else None
            is_faster = new_s < old_s
        finally:
            new.roll_back()
            if not is_faster:
                new.drop()
        return is_faster


def _at_once() -> bool:
    return True


_loading = functools.cache(Loading)  # once in a process


def _on_this_device(load: Callable[[], None]) -> Callable[[], None]:
    """Loads kernels to the caller's device from another thread."""
    if not torch.cuda.is_initialized():
        return load
    device = torch.cuda.current_device()

    def loaded() -> None:
        with torch.cuda.device(device):
            load()

    return loaded


class Progress:
    """The stages of one graphed step, and how long calls may wait for them."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._started = self._counted = time.monotonic()
        self._left_s = _FIRST_PAUSES_S
        self._entries: list[StageStatus] = []

    @property
    def may_pause(self) -> bool:
        """Whether the next call may wait; for longer than what is left, if need be."""
        now = time.monotonic()
        gained = _PAUSE_SHARE * (now - self._counted)
        self._left_s = min(_FIRST_PAUSES_S, self._left_s + gained)
        self._counted = now
        return self._left_s > 0

    def paused(self, seconds: float) -> None:
        self._left_s -= seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        """Whether no stage waits for its code."""
        return all(each.state not in _UNDER_WAY for each in self._entries)

    def add(self, strategy: str, recording: Recording) -> StageStatus:
        self._entries.append(StageStatus(strategy, recording.shapes))
        return self._entries[-1]

    def status(self) -> tuple[StageStatus, ...]:
        return tuple(replace(entry) for entry in self._entries)


def timed(old: Recording, new: Recording, call: Call) -> tuple[float, float]:
    """The median seconds of a replay of each; the caller undoes their effects.

    Long replays are measured less often, because a call waits for them.
    """
    seconds: dict[Recording, list[float]] = {old: [], new: []}
    replays, begin = _REPLAYS, time.monotonic()
    for number in range(1, _ROUNDS + 1):
        for recording, measured in seconds.items():
            recording.start(tensors_in(call))
            measured.append(recording.capture.seconds_of(replays))
            if measured[-1] > _REPLAY_S:
                replays = 1
        if number >= _FEWEST_ROUNDS and time.monotonic() - begin > _ROUNDS_S:
            break
    return statistics.median(seconds[old]), statistics.median(seconds[new])
