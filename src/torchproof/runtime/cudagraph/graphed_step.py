"""The callable that `torchproof.graph` returns.

For each call, it finds or makes the recording for the call's shapes, copies the inputs,
replays the graph, and returns copies of the outputs. Recorded graphs are cached per
snapshot of external state. If that state changed, another recording is used or made, or
the step runs without a graph.

A call that a recording of its shape serves is replayed. What happens to another one,
the state of its shape in the current snapshot decides:

    state      what happens to the call                            next state
    NEW        with wait=False, it runs uncompiled                 ANSWERED
    NEW, ANSWERED, POSTPONED
               it is recorded, and its first replay answers        RECORDED
               it cannot be recorded yet, and runs unrecorded      (the same)
               its recording changes Python state, as a model may
               at its first call, and it runs unrecorded           POSTPONED
               so did an earlier recording                         REFUSED
               it cannot be recorded, and runs unrecorded          REFUSED
    RECORDED   it has other gradients: as ANSWERED, up to a limit  RECORDED, REFUSED
    REFUSED    it is tried in the ways of `ladder`                 DIVERTED
    DIVERTED   it runs in the fastest of them                      DIVERTED

In a new snapshot, shapes begin again as ANSWERED, or as POSTPONED if the last attempt
changed Python state. If a recording is ended because the step created state that it
may have read, its shape is ANSWERED. A step that is given up diverts all calls.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from torchproof.records import UserError
from torchproof.runtime.cudagraph import call_inputs, ladder
from torchproof.runtime.cudagraph.call_inputs import (
    Call,
    LikeCall,
    Tensors,
    map_tensors,
)
from torchproof.runtime.cudagraph.capture import Pool
from torchproof.runtime.cudagraph.executed_code import Execution
from torchproof.runtime.cudagraph.graph_status import (
    Bucket,
    ChangesState,
    RecordLater,
    Status,
    Stop,
    Stopped,
)
from torchproof.runtime.cudagraph.ladder import Choice, Kind, Way
from torchproof.runtime.cudagraph.optimizers import LearningRates
from torchproof.runtime.cudagraph.padding import Fit, Padder, Shapes
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.progressive import (
    Moment,
    Progress,
    Stage,
    Within,
)
from torchproof.runtime.cudagraph.recorder import (
    Clones,
    Recorder,
    Recording,
    Upgrade,
)
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.runtime.explained import Explained
from torchproof.runtime.status_report import State
from torchproof.strategies import NotApplicable
from torchproof.torch_private import dispatch_modes, global_switches, thread_state

log = logging.getLogger("torchproof")
# A step whose external state changes this often between two replays is not recorded.
_STORM = 4
_MOST_RECORDINGS = 64
_REVIEW = 16  # after so many calls, whether a step can be recorded is asked again
_MAX_SNAPSHOTS = 4  # for example train and eval, each with two settings


@dataclass(frozen=True)
class Later:
    """What replaces the uncompiled recordings, once it is compiled.

    `first` runs the step before anything is watched or recorded.
    """

    progress: Progress
    stages: Callable[[StateSnapshot], list[Stage]]
    first: Preparation


class ShapeState(enum.Enum):
    """What happens to a call that no recording of its shape serves."""

    NEW = "no call yet"
    ANSWERED = "to be recorded"
    POSTPONED = "to be recorded, unless it changes state again"
    RECORDED = "recorded"
    REFUSED = "cannot be recorded"
    DIVERTED = "runs in another way"


@dataclass
class Shape:
    """The calls with one key in one snapshot."""

    state: ShapeState = ShapeState.NEW
    recordings: list[Recording] = field(default_factory=list)  # by their gradients
    changes_state: bool = False  # as the last attempt to record it found
    stops: tuple[Stop, ...] = ()  # why it is refused
    choice: Choice | None = None  # how it runs then
    # What the output of a padded call is cut to; False: not padded, None: not checked.
    cut: Shapes | Literal[False] | None = None

    @property
    def is_refused(self) -> bool:
        return self.state in (ShapeState.REFUSED, ShapeState.DIVERTED)

    def end_recordings(self) -> None:
        for recording in self.recordings:
            if recording.upgrade is not None:
                recording.upgrade.end()
            recording.drop()
        self.recordings.clear()
        if self.state is ShapeState.RECORDED:
            self.state = ShapeState.ANSWERED

    def in_new_snapshot(self) -> Shape:
        if self.state is ShapeState.NEW:
            return Shape()
        after = ShapeState.POSTPONED if self.changes_state else ShapeState.ANSWERED
        return Shape(after, changes_state=self.changes_state)


@dataclass
class Snapshot:
    """The external state of the step at one time, and the calls in this state."""

    state: StateSnapshot
    preparation: Preparation
    learning_rates: LearningRates
    shapes: dict[Hashable, Shape]
    stages: list[Stage]  # with `wait=False`
    ways: list[Way] | None = None  # made for the first refused call

    def shape(self, key: Hashable) -> Shape:
        return self.shapes.setdefault(key, Shape())

    def recordings(self) -> list[Recording]:
        return [each for shape in self.shapes.values() for each in shape.recordings]

    def serving(self, key: Hashable, call: Call) -> Recording | None:
        """The recording whose replay is right for a call."""
        if (shape := self.shapes.get(key)) is not None:
            for recording in shape.recordings:
                if recording.gradients.fits() and recording.inputs.serve(call):
                    return recording
        return None

    def end_recordings(self) -> None:
        for shape in self.shapes.values():
            shape.end_recordings()


@dataclass
class _LastReplay:
    """The recording that answered the last call, to recognise the next one by."""

    recording: Recording
    like: LikeCall
    switches: global_switches.Unchanged
    tensors: Tensors = ()  # of the call that is answered


@dataclass(frozen=True)
class _LastDiversion:
    """The way that answered the last call, likewise."""

    way: Way
    like: LikeCall


@dataclass(frozen=True)
class Contract:
    """What the caller says of the state that the step depends on."""

    only_arguments: bool = False  # nothing else changes between calls
    audit: int | None = None  # each call of this number checks that
    depends: Callable[[], Any] | None = None  # what cannot be watched

    def trusts(self, call: int) -> bool:
        """Whether the external state is not compared at this call."""
        return self.only_arguments and (self.audit is None or call % self.audit != 0)


DEFAULT = Contract()


class Graphed(Explained[Status]):
    """Runs the step by replaying it. `status()` says how the calls ran."""

    def __init__(
        self,
        step: Callable[..., Any],
        prepare: Callable[[StateSnapshot], Preparation],
        *,
        pool: Pool,
        buffers: bool = False,
        padder: Padder | None = None,
        within: Within = contextlib.nullcontext,  # the context around each recording
        refused: Stop | None = None,  # why nothing is recorded
        lacking: Callable[[], Stop | None] = lambda: None,  # why torch cannot record
        later: Later | None = None,  # what is compiled while calls are answered
        unrecorded: Callable[..., Any] | None = None,  # runs what cannot be recorded
        ways: Callable[[StateSnapshot], list[Way]] = lambda state: [],
        contract: Contract = DEFAULT,
    ) -> None:
        self.step = step
        self.pool = pool
        self.buffers = buffers
        self._within = within
        self.padder = padder
        self._prepare = prepare
        self._later = later
        self._unrecorded = unrecorded
        self._lacking = lacking
        self._contract = contract
        self._ways = ways
        self._notes: list[str] = []
        self._logged: set[Stop] = set()
        self._snapshots: list[Snapshot] = []
        self._answered: dict[Hashable, Shape] = {}  # before the first snapshot
        self._last: _LastReplay | _LastDiversion | None = None
        self._changes: Counter[str] = Counter()
        self._changes_since_replay = 0
        self._settles = False  # this call does nothing else for the compiler
        self._calls = self._plain_calls = self._recordings = self._replays = 0
        self._clones = Clones()
        self._given_up = refused  # why no call is recorded
        if refused is not None:
            self._log_stops(refused)
        self._obstacles: tuple[Stop, ...] = ()  # why calls were not padded
        if later is None or padder is not None:
            self._watch_state()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        call = args, kwargs
        with self.pool.lock:
            last = self._last
            if isinstance(last, _LastReplay):
                if self._repeats(last, call):
                    return last.recording.finish(last.tensors)
            elif last is not None and self._is_like(last, call):
                self._plain_calls += 1
                return last.way(call)
            self._last = None
            if not self._snapshots:
                if self._later is not None and not self._answered:
                    return self._answer_first(call, self._later)
                self._watch_state()
            self._settles = self._settle()
            if self.padder is not None:
                return self._padded(self.padder, call)
            return self._answer(call)

    @property
    def _is_disturbed(self) -> bool:
        """Whether threads change torch's state, or have since the last `_settle`."""
        disturbed = self._later is not None and self._later.progress.is_disturbed
        return disturbed or thread_state.another_thread_compiles()

    def _settle(self) -> bool:
        """Whether threads had changed torch's state, which takes time to watch anew."""
        if self._later is None or not self._later.progress.is_settled():
            return False
        for each in self._snapshots:
            each.state.forget_the_compiler()
        return True

    def _answer_first(self, call: Call, later: Later) -> Any:
        """The first call with `wait=False`: answered before anything else is done."""
        key = self._key_if_any(call)
        if self._given_up is not None or key is None:
            self._watch_state()
            return self._plain(call)
        self._answered[key] = Shape(ShapeState.ANSWERED)
        answer = self._postponed(call)
        later.progress.start_compiler()
        return answer

    def _watch_state(self) -> None:
        """Takes the first snapshot of the external state."""
        if self._given_up is None and (stop := self._lacking()) is not None:
            self._given_up = stop
            self._log_stops(stop)
        state = StateSnapshot(self.step)
        self._snapshots.append(self._take_snapshot(state, self._answered))
        if self._later is not None:
            self._later.progress.start_compiler()

    def prepare(self, /, *args: Any, **kwargs: Any) -> None:
        """Records a call like this one; its effects are undone."""
        call = args, kwargs
        with self.pool.lock:
            if not self._snapshots:
                self._watch_state()
            key = self._key_if_any(call)
            if self._given_up is not None or key is None:
                return
            self._unchanged(known=False)  # a recording is one of the state now
            if self._snapshot.serving(key, call) is not None:
                return
            recording, failure = self._attempt(self._snapshot.shape(key), call)
            if recording is not None:
                recording.roll_back()
            elif failure is not None:
                self._log_stops(failure)  # the first call shows if the step fails

    @property
    def _snapshot(self) -> Snapshot:
        return self._snapshots[0]

    @property
    def _preparation(self) -> Preparation:
        if self._later is not None and not self._snapshots:
            return self._later.first
        return self._snapshot.preparation

    # -- one call ------------------------------------------------------------------

    def _repeats(self, last: _LastReplay, call: Call) -> bool:
        """Replays the recording of the last call, if that is certain to be right.

        If not, the recording may have run, but nothing was changed.
        """
        tensors, recording = last.like.tensors_of(call), last.recording
        if (
            tensors is None
            or dispatch_modes.is_overridden()
            or not recording.gradients.fits()
            or (recording.upgrade is not None and recording.upgrade.is_due)
        ):
            return False
        is_trusted = self._contract.trusts(self._calls)
        # What is compared overlaps with the device, if the replay can be discarded.
        is_early = is_trusted or recording.can_be_discarded
        if not is_early and not self._stays_like(last):
            return False
        if (rates := self._snapshot.learning_rates).optimizers:
            rates.write()
        recording.start(tensors)
        if is_early and not is_trusted and not self._stays_like(last):
            return False
        last.tensors = tensors
        self._replays += 1
        self._changes_since_replay = 0
        return True

    def _stays_like(self, last: _LastReplay) -> bool:
        """Whether torch's switches and the external state are as at the last call."""
        return last.switches.check() and self._snapshot.state.unchanged()

    def _answer(self, call: Call) -> Any:
        key = self._key_if_any(call)
        if key is None:
            return self._plain(call)
        if self._given_up is not None:
            return self._diverted(self._snapshot.shape(key), call)
        recording = self._snapshot.serving(key, call)
        inputs = None
        # If a replay can be discarded without harm, it starts before the comparison of
        # the external state, which then overlaps with the device.
        if recording is not None and recording.can_be_discarded:
            inputs = self._start(recording, call)
        if not self._unchanged(known=recording is not None):
            if self._is_disturbed:
                return self._prepared(call)
            recording = self._snapshot.serving(key, call)
            inputs = None
        if recording is None:
            return self._unserved(self._snapshot.shape(key), call)
        upgrade = None if self._settles else recording.upgrade
        if upgrade is not None and upgrade.is_due:
            compiled = self._advance(upgrade, key, recording, call)
            if compiled is not None:
                recording, inputs = compiled, None
        if inputs is None:
            inputs = self._start(recording, call)
        self._changes_since_replay = 0
        self._replays += 1
        self._last = self._recognised(recording, call)
        return recording.finish(inputs)

    def _start(self, recording: Recording, call: Call) -> Tensors:
        self._snapshot.learning_rates.write()
        tensors = call_inputs.tensors_in(call)
        recording.start(tensors)
        return tensors

    def _recognised(self, recording: Recording, call: Call) -> _LastReplay | None:
        """What recognises calls like this one; None if only their key does."""
        if self.padder is not None or self._contract.depends is not None:
            return None
        like = recording.like or LikeCall.of(call)
        if like is None or recording.inputs.reads_storage:
            return None
        recording.like = like
        return _LastReplay(recording, like, global_switches.Unchanged())

    def _advance(
        self, upgrade: Upgrade, key: Hashable, recording: Recording, call: Call
    ) -> Recording | None:
        """The compiled recording that replaces this one from now on, if it is ready."""
        moment = Moment(
            recording,
            call,
            self._calls,
            recorder=self._recorder,
            clones=None if self.buffers else self._clones,
            within=self._within,
        )
        state = self._snapshot.state
        recording.move_gradients()  # before they are noted, in order to be restored
        new = upgrade.advance(moment)
        if not state.unchanged():  # the compiler changes torch, and marks the step
            state.forget_foreign_changes()
            state.extend()
        recording.upgrade = None if upgrade.is_over else upgrade
        if new is None:
            return None
        self._recordings += 1
        new.upgrade, recording.upgrade = recording.upgrade, None
        recordings = self._snapshot.shapes[key].recordings
        recordings[recordings.index(recording)] = new
        recording.drop()
        return new

    def _key(self, call: Call) -> Hashable:
        return self._key_with(self._declared(), call)

    def _declared(self) -> Hashable:
        """The key of what the step depends on, as the caller says."""
        depends = self._contract.depends
        return None if depends is None else call_inputs.key_of_declared(depends())

    def _key_with(self, declared: Hashable, call: Call) -> Hashable:
        return call_inputs.key_of(call), global_switches.values(), declared

    def _key_if_any(self, call: Call) -> Hashable | None:
        """The key of a call; None if it cannot be replayed."""
        if dispatch_modes.is_overridden():
            return None
        declared = self._declared()  # an error of it is the caller's
        try:
            key = self._key_with(declared, call)
            hash(key)
        except Exception as error:
            self._add_obstacle("the arguments cannot be compared", error)
            return None
        return key

    def _unserved(self, shape: Shape, call: Call) -> Any:
        """A call without a recording: records it, or runs it without a graph."""
        if not shape.is_refused and (stop := self._limit(shape)) is not None:
            self._refuse(shape, stop)
        if self._given_up is not None or shape.is_refused:
            return self._diverted(shape, call)
        if self._later is not None and self._is_early(shape, self._later.progress):
            return self._postponed(call)
        recording, failure = self._attempt(shape, call)
        if recording is not None:
            self._replays += 1
            recording.keep()
            return recording.finish(list(call_inputs.tensors_in(call)))
        if self._snapshot.state.must_run_first:
            return self._observed(call)
        run = self._prepared if failure or shape.is_refused else self._postponed
        answer = run(call)  # raises the step's own error
        if failure is not None:
            self._refuse(shape, failure)
        elif not shape.is_refused:  # the first call created state
            if shape.state is ShapeState.POSTPONED:  # recordings may have read it
                self._snapshot.end_recordings()
            self._snapshot.state.extend()
        return answer

    def _limit(self, shape: Shape) -> Stop | None:
        """Why there are enough recordings."""
        if len(self._snapshot.recordings()) >= _MOST_RECORDINGS:
            reason = (
                f"there are already {_MOST_RECORDINGS} recordings: pad to fewer shapes,"
                " and pass numbers that change as tensors"
            )
            return Stop("memory", reason)
        if len(shape.recordings) >= _STORM:
            reason = (
                "the step reads gradients that are new tensors at every call: move the"
                " backward into the step"
            )
            return Stop("python", reason)
        return None

    def _is_early(self, shape: Shape, progress: Progress) -> bool:
        """Whether not to record yet: the first call, or one beside a compilation.

        Also not if other recordings made calls wait too long.
        """
        if shape.state is ShapeState.NEW:
            shape.state = ShapeState.ANSWERED
            return True
        return not progress.pauses.allowed or thread_state.another_thread_compiles()

    def _attempt(
        self, shape: Shape, call: Call
    ) -> tuple[Recording | None, Stop | None]:
        """Records the call, which its first replay has then executed.

        If that raises another error than `Stopped`, returns it as a stop: the step
        itself may fail. A traceback would keep the objects of the failed run alive.
        """
        begin = time.monotonic()
        try:
            return self._record(shape, call), None
        except RecordLater:
            pass
        except ChangesState as stopped:
            if shape.changes_state:
                self._refuse(shape, *stopped.stops)
            else:
                shape.state, shape.changes_state = ShapeState.POSTPONED, True
        except Stopped as stopped:
            self._refuse(shape, *stopped.stops)
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            reason = f"{type(error).__name__} during recording: {text}"
            return None, Stop("capture", reason)
        finally:
            if self._later is not None:
                self._later.progress.pauses.spend(time.monotonic() - begin)
        return None, None

    def _record(self, shape: Shape, call: Call) -> Recording:
        call_inputs.assert_finite(call)
        try:
            with self._within():
                recording = self._recorder().record(
                    call, None if self.buffers else self._clones
                )
        except NotApplicable as error:
            raise Stopped(Stop("capture", str(error))) from error
        self._recordings += 1
        if self._later is not None:
            stages = self._snapshot.stages
            recording.upgrade = self._later.progress.begin(stages, recording)
        shape.recordings.append(recording)
        shape.state, shape.stops, shape.changes_state = ShapeState.RECORDED, (), False
        return recording

    def _recorder(self, preparation: Preparation | None = None) -> Recorder:
        snapshot = self._snapshot
        return Recorder(
            preparation or snapshot.preparation,
            snapshot.state,
            snapshot.learning_rates,
            self.pool,
        )

    def _observed(self, call: Call) -> Any:
        """Runs the step once for real, in eager, and notes the code that runs."""
        state, ran = self._snapshot.state, Execution()
        observer = ran if sys.getprofile() is None else contextlib.nullcontext()
        self._plain_calls += 1
        args, kwargs = call
        try:
            with self._snapshot.preparation.uncompiled() as step, observer:
                answer = step(*args, **kwargs)
        finally:
            state.ran.add(ran)
            state.extend()
        return map_tensors(answer, Tensor.detach)

    def _plain(self, call: Call) -> Any:
        """Runs a step that is not recorded; its outputs are detached."""
        if self._unrecorded is None:
            return self._prepared(call)
        return self._run(self._unrecorded, call)

    def _diverted(self, shape: Shape, call: Call) -> Any:
        """Runs a call that is refused, in the fastest way that was proved for it."""
        stop = self._given_up or shape.stops[0]
        is_apart = self._unrecorded is not None or self._later is not None
        if is_apart or stop.kind == "recipe":
            return self._plain(call)
        if shape.choice is None and (choice := self._choose(call, stop)) is not None:
            shape.state, shape.choice = ShapeState.DIVERTED, choice
        way = None if shape.choice is None else shape.choice.way
        if way is None:
            return self._plain(call)
        self._plain_calls += 1
        if self._contract.depends is None and (like := LikeCall.of(call)) is not None:
            self._last = _LastDiversion(way, like)
        return way(call)

    def _choose(self, call: Call, stop: Stop) -> Choice | None:
        """None if this call cannot be tried: not yet, or because the step fails."""
        snapshot = self._snapshot

        def ways() -> list[Way]:
            """Made when one is needed: that loads the compiler."""
            if snapshot.ways is None:
                snapshot.ways = self._ways(snapshot.state)
            if self._is_storm:  # pieces, too, would be recorded at every call
                return [way for way in snapshot.ways if way.kind is not Kind.PIECES]
            return snapshot.ways

        try:
            choice = ladder.choose(self._recorder(), call, ways, stop)
        except Exception:  # the step raises its own error again
            log.debug("graph: a call is not tried", exc_info=True)
            return None
        if choice.rung is not None:
            log.warning("%s", choice.rung)
        return choice

    def _is_like(self, last: _LastDiversion, call: Call) -> bool:
        """Whether the way of the last call is right for this one.

        Compiled code guards what it depends on. Now and then the external state is
        looked at nevertheless: with another one, the step may be recorded.
        """
        return (
            self._calls % _REVIEW != 0
            and last.like.tensors_of(call) is not None
            and not dispatch_modes.is_overridden()
            and (not last.way.keeps_gradients or self._snapshot.state.unchanged())
        )

    def _postponed(self, call: Call) -> Any:
        """Runs a call without a graph whose shapes will be recorded.

        Where recordings are made: streams do not share the memory that they free, such
        as that of the gradients and of the state of an optimizer.
        """
        devices = (each.device for each in call_inputs.tensors_in(call) if each.is_cuda)
        if (device := next(devices, None)) is None:
            return self._prepared(call)
        with self.pool.aside(device):
            return self._prepared(call)

    def _prepared(self, call: Call) -> Any:
        """Runs the step without a graph: compiled if that works, else in eager."""
        preparation = self._preparation
        way = preparation.uncompiled() if preparation.fails else preparation.apart()
        with way as step:
            return self._run(step, call)

    def _run(self, step: Callable[..., Any], call: Call) -> Any:
        """The outputs are detached, like those of a replay.

        Autograd history that stays alive would break a later capture.
        """
        self._plain_calls += 1
        args, kwargs = call
        return map_tensors(step(*args, **kwargs), Tensor.detach)

    # -- padding -------------------------------------------------------------------

    def _padded(self, padder: Padder, call: Call) -> Any:
        """Runs a call through a recording for larger sizes, if that was checked."""
        fit = self._fit(padder, call)
        if fit is None or self._given_up is not None:
            return self._answer(call)
        shapes: Shapes | None = None
        if fit.padded:
            self._unchanged(known=bool(self._snapshot.recordings()))
            shape = self._snapshot.shape(self._key(call))
            if shape.cut is None:
                shape.cut = False
                return self._check(padder, shape, call, fit)
            if shape.cut is False:
                return self._answer(call)
            shapes = shape.cut
        before = self._replays
        answer = self._answer(fit.padded_call)
        if self._replays > before:
            padder.count(fit)
        return answer if shapes is None else padder.cut(answer, fit, shapes)

    def _fit(self, padder: Padder, call: Call) -> Fit | None:
        """The bucket of a call; None if the call is not padded or padding fails."""
        if self._key_if_any(call) is None:
            return None
        try:
            return padder.fit(call)
        except Exception as error:
            self._add_obstacle("not padded", error)
            return None

    def _add_obstacle(self, what: str, error: Exception) -> None:
        """Notes why a call is not padded, or cannot be."""
        stop = Stop("input", f"{what}: {type(error).__name__}: {error}")
        stops = error.stops if isinstance(error, Stopped) else (stop,)
        new = tuple(stop for stop in stops if stop not in self._obstacles)
        self._log_stops(*new)
        self._obstacles += new

    def _check(self, padder: Padder, shape: Shape, call: Call, fit: Fit) -> Any:
        """The first call of a size: compares the padded replay with eager."""
        self.prepare(*fit.padded_call[0], **fit.padded_call[1])
        key = self._key(fit.padded_call)
        recording = self._snapshot.serving(key, fit.padded_call)
        if recording is None:
            if self._snapshot.shape(key).state is ShapeState.POSTPONED:
                shape.cut = None
            return self._answer(call)
        tensors = call_inputs.tensors_in(fit.padded_call)
        try:
            shape.cut = self._recorder().replay_padded(
                recording, tensors, call, lambda out, to: padder.cut(out, fit, to)
            )
        except RecordLater:
            shape.cut = None
            return self._answer(call)
        except Exception as error:  # the step's own error, which `_answer` raises again
            self._add_obstacle("not padded", error)
            return self._answer(call)
        self._replays += 1
        padder.count(fit)
        return padder.cut(recording.finish(tensors), fit, shape.cut)

    # -- external state -------------------------------------------------------------

    def _unchanged(self, *, known: bool) -> bool:
        """Whether the external state is unchanged; if not, switches the snapshot.

        `known` says that there is a recording for the call.
        While another thread compiles, the snapshot stays.
        """
        snapshot = self._snapshot
        if known and self._contract.trusts(self._calls):
            return True
        if snapshot.state.unchanged():
            return True
        if self._is_disturbed:
            return False  # torch replaces methods of its own classes meanwhile
        try:
            changes = snapshot.state.changes()
        except Exception as error:  # another thread may be changing the state
            changes = [f"the external state cannot be compared: {error!r}"]
        if not changes:  # other objects, but equal values
            snapshot.state.refresh()
            return True
        if self._contract.only_arguments and snapshot.recordings():
            raise UserError(
                f"graph: {changes[0]}, but checks='arguments' promises that only"
                " arguments change: record with the default checks"
            )
        self._changes.update(changes)
        self._last = None  # of this snapshot, which is not the current one any more
        if not self._restore_earlier():
            self._changes_since_replay += 1
            self._start_snapshot(snapshot)
        if self._is_storm:
            reason = f"the step would be recorded at every call: {changes[0]}"
            self._give_up(Stop("python", reason))
        return False

    @property
    def _is_storm(self) -> bool:
        return self._changes_since_replay >= _STORM

    def _restore_earlier(self) -> bool:
        """Whether the state equals an earlier snapshot, which becomes current."""
        for snapshot in self._snapshots[1:]:
            if not snapshot.state.changes():
                snapshot.state.refresh()
                self._snapshots.remove(snapshot)
                self._snapshots.insert(0, snapshot)
                return True
        return False

    def _start_snapshot(self, last: Snapshot) -> None:
        moved = last.state.moved()
        shapes = {key: each.in_new_snapshot() for key, each in last.shapes.items()}
        self._snapshots.insert(
            0, self._take_snapshot(StateSnapshot(self.step, last.state.ran), shapes)
        )
        # An old snapshot would keep the old memory of moved tensors alive.
        for old in self._snapshots[1:] if moved else self._snapshots[_MAX_SNAPSHOTS:]:
            old.end_recordings()
            self._snapshots.remove(old)

    def _take_snapshot(
        self, state: StateSnapshot, shapes: dict[Hashable, Shape]
    ) -> Snapshot:
        learning_rates = LearningRates(self._notes)
        learning_rates.add(state.optimizers)
        snapshot = Snapshot(
            state,
            self._prepare(state),
            learning_rates,
            shapes,
            [] if self._later is None else self._later.stages(state),
        )
        state.refresh()  # torch.compile changes attributes of the step
        return snapshot

    def _refuse(self, shape: Shape, *stops: Stop) -> None:
        shape.state, shape.stops = ShapeState.REFUSED, stops
        # The code does not compile, or its results differ from eager.
        self._snapshot.preparation.fails |= any(
            stop.operation == "compiling" or stop.kind == "numerics" for stop in stops
        )
        self._log_stops(*stops)

    def _log_stops(self, *stops: Stop) -> None:
        for stop in stops:
            if stop not in self._logged:
                log.warning("not replayed: %s", stop)
            self._logged.add(stop)

    def _give_up(self, stop: Stop) -> None:
        self._given_up = stop
        for snapshot in self._snapshots:
            snapshot.end_recordings()
        log.warning("replays are disabled: %s", stop)

    # -- status ---------------------------------------------------------------------

    @property
    def falls_back(self) -> list[str]:
        """The reasons why calls are not replayed; empty if all are."""
        return [str(stop) for stop in self._stops()]

    @property
    def is_compiled(self) -> bool:
        """Whether there are recordings, and none waits for its code."""
        later = self._later
        return self._recordings > 0 and (later is None or later.progress.is_over)

    def _stops(self) -> tuple[Stop, ...]:
        stops = [] if self._given_up is None else [self._given_up]
        stops += [stop for shape in self._shapes() for stop in shape.stops]
        return tuple(dict.fromkeys([*stops, *self._obstacles]))

    def _shapes(self) -> list[Shape]:
        """Those of the current snapshot."""
        return [*self._snapshot.shapes.values()] if self._snapshots else []

    @property
    def state(self) -> State:
        """What calls run now; a recording counts as compiled, also one of eager."""
        if not self._calls:
            return "not called"
        if self._later is not None and not self._later.progress.is_over:
            return "compiling"
        if any(each.recordings() for each in self._snapshots):
            return "partly compiled" if self._stops() else "compiled"
        preparation = self._preparation
        is_eager = preparation.name == "eager" or preparation.fails
        return "eager" if is_eager else "partly compiled"

    def status(self) -> Status:
        every = [each for snapshot in self._snapshots for each in snapshot.recordings()]
        return Status(
            strategy=self._preparation.name,
            calls=self._calls,
            replays=self._replays,
            plain_calls=self._plain_calls,
            recordings=self._recordings,
            pool_bytes=self.pool.bytes(),
            clones=self._clones.count,
            cloned_bytes=self._clones.bytes,
            buckets=tuple(_bucket(each) for each in every),
            padding=None if self.padder is None else self.padder.to_json(),
            stops=self._stops(),
            changes=tuple(
                f"{change} ({times} times)" if times > 1 else change
                for change, times in self._changes.items()
            ),
            notes=tuple(self._notes),
            stages=() if self._later is None else self._later.progress.status(),
            rungs=tuple(
                shape.choice.rung
                for shape in self._shapes()
                if shape.choice is not None and shape.choice.rung is not None
            ),
        )


def _bucket(recording: Recording) -> Bucket:
    verdict = recording.verdict
    return Bucket(
        shapes=recording.shapes,
        replays=recording.replays,
        pool_bytes=recording.pool_bytes,
        record_s=recording.record_s,
        verdict="random" if recording.random else str(verdict.verdict),
        error=verdict.max_rel_error,
    )
