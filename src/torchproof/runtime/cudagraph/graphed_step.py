"""The callable that `torchproof.graph` returns.

For each call, it finds or makes the recording for the call's shapes, copies the inputs,
replays the graph, and returns copies of the outputs. Recorded graphs are cached per
snapshot of external state. If that state changed, another recording is used or made, or
the step runs without a graph.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchproof.records import UserError
from torchproof.runtime.cudagraph import call_inputs, ladder, padding
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
    PaddingCheck,
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


@dataclass
class Snapshot:
    """The external state of the step at one time, and the recordings for it."""

    state: StateSnapshot
    preparation: Preparation
    learning_rates: LearningRates
    stages: list[Stage] = field(default_factory=list)  # with `wait=False`
    table: dict[Hashable, list[Recording]] = field(default_factory=dict)
    # None: not padded
    cuts: dict[Hashable, Shapes | None] = field(default_factory=dict)
    refused: dict[Hashable, tuple[Stop, ...]] = field(default_factory=dict)
    # how refused calls run
    ways: list[Way] | None = None
    choices: dict[Hashable, Choice] = field(default_factory=dict)

    def recordings(self) -> list[Recording]:
        return [each for some in self.table.values() for each in some]

    def fitting(self, key: Hashable, call: Call) -> Recording | None:
        for recording in self.table.get(key, ()):
            if recording.gradients.fits() and recording.inputs.serve(call):
                return recording
        return None


@dataclass
class _Last:
    """The recording that answered the last call, to recognise the next one by."""

    recording: Recording
    like: LikeCall
    switches: Hashable
    tensors: Tensors = ()  # of the call that is answered


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
        self._seen: set[Hashable] = set()  # keys that eager has answered once
        self._postponed: set[Hashable] = set()  # whose first call changed state
        self._notes: list[str] = []
        self._logged: set[Stop] = set()
        self._snapshots: list[Snapshot] = []
        self._last: _Last | None = None
        self._last_way: tuple[LikeCall, Way] | None = None
        self._changes: Counter[str] = Counter()
        self._failure: Stop | None = None  # of the last attempt to record
        self._changes_since_replay = 0
        self._settles = False  # this call does nothing else for the compiler
        self._calls = self._plain_calls = self._recordings = self._replays = 0
        self._clones = Clones()
        self._given_up: tuple[Stop, ...] = () if refused is None else (refused,)
        self._log_stops(self._given_up)
        self._obstacles: tuple[Stop, ...] = ()  # why calls were not padded
        if later is None or padder is not None:
            self._watch_state()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        call = args, kwargs
        with self.pool.lock:
            if self._last is not None and self._repeats(self._last, call):
                return self._last.recording.finish(self._last.tensors)
            if self._last_way is not None and self._is_like_last(call):
                self._plain_calls += 1
                return self._last_way[1](call)
            self._last = self._last_way = None
            if not self._snapshots:
                if self._later is not None and not self._seen:
                    return self._answer_first(call, self._later)
                self._watch_state()
            self._settles = self._settle()
            return self._padded(call)

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
        if self._given_up or key is None:
            self._watch_state()
            return self._plain(call)
        self._seen.add(key)
        answer = self._run(call, later.first)
        later.progress.start_compiler()
        return answer

    def _watch_state(self) -> None:
        """Takes the first snapshot of the external state."""
        if not self._given_up and (stop := self._lacking()) is not None:
            self._given_up = (stop,)
            self._log_stops(self._given_up)
        self._snapshots.append(self._take_snapshot(StateSnapshot(self.step)))
        if self._later is not None:
            self._later.progress.start_compiler()

    def prepare(self, /, *args: Any, **kwargs: Any) -> None:
        """Records a call like this one; its effects are undone."""
        call = args, kwargs
        with self.pool.lock:
            if not self._snapshots:
                self._watch_state()
            key = self._key_if_any(call)
            if self._given_up or key is None or self._snapshot.fitting(key, call):
                return
            recording = self._attempt(key, call)
            if recording is not None:
                recording.roll_back()
            # the first call shows whether the step itself fails
            elif self._failure is not None:
                self._log_stops((self._failure,))
                self._failure = None

    @property
    def _snapshot(self) -> Snapshot:
        return self._snapshots[0]

    @property
    def _preparation(self) -> Preparation:
        if self._later is not None and not self._snapshots:
            return self._later.first
        return self._snapshot.preparation

    # -- one call ------------------------------------------------------------------

    def _repeats(self, last: _Last, call: Call) -> bool:
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
        if self._contract.trusts(self._calls):
            self._snapshot.learning_rates.write()
            recording.start(tensors)
        elif recording.can_be_discarded:  # what is compared overlaps with the device
            recording.start(tensors)
            if not self._stays_like(last):
                return False
        else:
            if not self._stays_like(last):
                return False
            self._snapshot.learning_rates.write()
            recording.start(tensors)
        last.tensors = tensors
        self._replays += 1
        self._changes_since_replay = 0
        return True

    def _stays_like(self, last: _Last) -> bool:
        """Whether torch's switches and the external state are as at the last call."""
        is_same = global_switches.values() == last.switches
        return is_same and self._snapshot.state.unchanged()

    def _answer(self, call: Call) -> Any:
        key = self._key_if_any(call)
        if key is None:
            return self._plain(call)
        if self._given_up:
            return self._below(key, call, self._given_up[0])
        recording = self._snapshot.fitting(key, call)
        inputs = None
        # If a replay can be discarded without harm, it starts before the comparison of
        # the external state, which then overlaps with the device.
        if recording is not None and recording.can_be_discarded:
            inputs = call_inputs.tensors_in(call)
            recording.start(inputs)
        if not self._unchanged(known=recording is not None):
            if self._is_disturbed:
                return self._prepared(call)
            recording = self._snapshot.fitting(key, call)
            inputs = None
        if recording is None:
            return self._first(key, call)
        upgrade = None if self._settles else recording.upgrade
        if upgrade is not None and upgrade.is_due:
            taken_over = self._advance(upgrade, key, recording, call)
            if taken_over is not None:
                recording = taken_over
                inputs = None
        if inputs is None:
            self._snapshot.learning_rates.write()
            inputs = call_inputs.tensors_in(call)
            recording.start(inputs)
        self._changes_since_replay = 0
        self._replays += 1
        self._last = self._recognised(recording, call)
        return recording.finish(inputs)

    def _recognised(self, recording: Recording, call: Call) -> _Last | None:
        """What recognises calls like this one; None if only their key does."""
        if self.padder is not None or self._contract.depends is not None:
            return None
        like = recording.like or LikeCall.of(call)
        if like is None or recording.inputs.reads_storage:
            return None
        recording.like = like
        return _Last(recording, like, global_switches.values())

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
        table = self._snapshot.table[key]
        table[table.index(recording)] = new
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
            reason = (
                f"the arguments cannot be compared: {type(error).__name__}: {error}"
            )
            self._add_obstacles(Stop("input", reason))
            return None
        return key

    def _first(self, key: Hashable, call: Call) -> Any:
        """A call without a recording: records it, or runs it without a graph."""
        if self._given_up:
            return self._below(key, call, self._given_up[0])
        if key in self._snapshot.refused:
            return self._below(key, call, self._snapshot.refused[key][0])
        if len(self._snapshot.recordings()) >= _MOST_RECORDINGS:
            reason = (
                f"there are already {_MOST_RECORDINGS} recordings: pad to fewer shapes,"
                " and pass numbers that change as tensors"
            )
            self._refuse(key, Stopped(Stop("memory", reason)))
            return self._plain(call)
        if len(self._snapshot.table.get(key, ())) >= _STORM:
            reason = (
                "the step reads gradients that are new tensors at every call: move the"
                " backward into the step"
            )
            self._refuse(key, Stopped(Stop("python", reason)))
            return self._plain(call)
        if self._later is not None and self._is_early(key, self._later.progress):
            return self._prepared(call)
        # Outside of `except`: a traceback would keep the objects of the failed run
        # alive.
        recording = self._attempt(key, call)
        if recording is None:
            failure, self._failure = self._failure, None
            if self._snapshot.state.must_run_first:
                return self._observed(call)
            answer = self._prepared(call)  # raises the step's own error
            if failure is not None:
                self._refuse(key, Stopped(failure))
            elif key not in self._snapshot.refused:  # the first call created state
                if key in self._postponed:  # earlier recordings may have read it
                    self._end_recordings(self._snapshot)
                self._snapshot.state.extend()
            return answer
        self._replays += 1
        recording.keep()
        return recording.finish(list(call_inputs.tensors_in(call)))

    def _is_early(self, key: Hashable, progress: Progress) -> bool:
        """Whether not to record yet: the first call, or one beside a compilation.

        Nor if calls have waited too long for other recordings.
        """
        is_first = key not in self._seen
        self._seen.add(key)
        if is_first or not progress.pauses.allowed:
            return True
        return thread_state.another_thread_compiles()

    def _attempt(self, key: Hashable, call: Call) -> Recording | None:
        """Records the call, which its first replay has then executed; None on failure.

        After a failure, calls with this key are refused, or the next one is tried.
        """
        begin = time.monotonic()
        try:
            return self._record(key, call)
        except RecordLater:
            return None
        except ChangesState as stopped:
            if key in self._postponed:
                self._refuse(key, stopped)
            self._postponed.add(key)  # a model may create state at its first call
            return None
        except Stopped as stopped:
            self._refuse(key, stopped)
            return None
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            reason = f"{type(error).__name__} during recording: {text}"
            self._failure = Stop("capture", reason)
            return None
        finally:
            if self._later is not None:
                self._later.progress.pauses.spend(time.monotonic() - begin)

    def _record(self, key: Hashable, call: Call) -> Recording:
        call_inputs.assert_finite(call)
        snapshot = self._snapshot
        try:
            with self._within():
                recording = self._recorder().record(
                    call, None if self.buffers else self._clones
                )
        except NotApplicable as error:
            raise Stopped(Stop("capture", str(error))) from error
        self._recordings += 1
        self._postponed.discard(key)
        if self._later is not None:
            recording.upgrade = self._later.progress.begin(snapshot.stages, recording)
        snapshot.table.setdefault(key, []).append(recording)
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
        self._plain_calls += 1
        args, kwargs = call
        return map_tensors(self._unrecorded(*args, **kwargs), Tensor.detach)

    def _below(self, key: Hashable, call: Call, stop: Stop) -> Any:
        """Runs a call that is refused, in the fastest way that was proved for it."""
        is_apart = self._unrecorded is not None or self._later is not None
        if is_apart or stop.kind == "recipe":
            return self._plain(call)
        snapshot = self._snapshot
        if key not in snapshot.choices:
            if snapshot.ways is None:
                snapshot.ways = self._ways(snapshot.state)
            ways = snapshot.ways
            if self._is_storm:  # pieces, too, would be recorded at every call
                ways = [way for way in ways if way.kind is not Kind.PIECES]
            choice = ladder.choose(self._recorder(), call, ways, stop)
            snapshot.choices[key] = choice
            if choice.rung is not None:
                log.warning("%s", choice.rung)
        way = snapshot.choices[key].way
        if way is None:
            return self._plain(call)
        self._plain_calls += 1
        if self._contract.depends is None and (like := LikeCall.of(call)) is not None:
            self._last_way = like, way
        return way(call)

    def _is_like_last(self, call: Call) -> bool:
        """Whether the way of the last call is right for this one.

        Compiled code guards what it depends on. Now and then the external state is
        looked at nevertheless: with another one, the step may be recorded.
        """
        assert self._last_way is not None
        return (
            self._calls % _REVIEW != 0
            and self._last_way[0].tensors_of(call) is not None
            and not dispatch_modes.is_overridden()
        )

    def _prepared(self, call: Call) -> Any:
        """Runs the step without a graph: compiled if that works, else in eager."""
        return self._run(call, self._snapshot.preparation)

    def _run(self, call: Call, preparation: Preparation) -> Any:
        """Runs the step; the outputs are detached, like those of a replay.

        Autograd history that stays alive would break a later capture.
        """
        self._plain_calls += 1
        args, kwargs = call
        with (
            preparation.uncompiled()
            if preparation.fails
            else preparation.apart() as step
        ):
            return map_tensors(step(*args, **kwargs), Tensor.detach)

    # -- padding -------------------------------------------------------------------

    def _padded(self, call: Call) -> Any:
        """Runs a call through a recording for larger sizes, if that was checked."""
        fit = self._fit(call)
        if self.padder is None or fit is None or self._given_up:
            return self._answer(call)
        before = self._replays
        answer, served = self._fitted(self.padder, call, fit)
        if served and self._replays > before:
            self.padder.count(fit)
        return answer

    def _fit(self, call: Call) -> Fit | None:
        """The bucket of a call; None if the call is not padded or padding fails."""
        if self.padder is None or self._key_if_any(call) is None:
            return None
        try:
            return self.padder.fit(call)
        except Exception as error:
            self._add_obstacles(
                Stop("input", f"not padded: {type(error).__name__}: {error}")
            )
            return None

    def _add_obstacles(self, *stops: Stop) -> None:
        new = tuple(stop for stop in stops if stop not in self._obstacles)
        self._log_stops(new)
        self._obstacles += new

    def _fitted(self, padder: Padder, call: Call, fit: Fit) -> tuple[Any, bool]:
        """The result, and whether the bucket's recording produced it."""
        if not fit.padded:
            return self._answer(call), True
        self._unchanged(known=bool(self._snapshot.table))
        cuts = self._snapshot.cuts
        key = self._key(call), *fit.bucket.values()
        if key not in cuts:
            cuts[key] = None
            return self._check(key, call, fit)
        if (shapes := cuts[key]) is None:
            return self._answer(call), False
        return padder.cut(self._answer(fit.padded_call), fit, shapes), True

    def _check(self, key: Hashable, call: Call, fit: Fit) -> tuple[Any, bool]:
        """The first call of a size: compares the padded replay with eager."""
        assert self.padder is not None
        self.prepare(*fit.padded_call[0], **fit.padded_call[1])
        key_of_bucket = self._key(fit.padded_call)
        recording = self._snapshot.fitting(key_of_bucket, fit.padded_call)
        if recording is None:
            if key_of_bucket in self._postponed:
                del self._snapshot.cuts[key]
            return self._answer(call), False
        recording.move_gradients()  # before they are noted, in order to be restored
        try:
            check = PaddingCheck(self._recorder(), call)
            shapes = padding.shapes_of(check.output)
            inputs = call_inputs.tensors_in(fit.padded_call)
            recording.start(inputs)
            recording.gradients.attach()
            check.assert_same(
                self.padder.cut(recording.output_copies.recorded, fit, shapes)
            )
        except RecordLater:
            del self._snapshot.cuts[key]
            return self._answer(call), False
        except Stopped as stopped:
            self._add_obstacles(*stopped.stops)
            return self._answer(call), False
        except Exception as error:  # the step's own error, which `_answer` raises again
            self._add_obstacles(
                Stop("input", f"not padded: {type(error).__name__}: {error}")
            )
            return self._answer(call), False
        self._snapshot.cuts[key] = shapes
        self._replays += 1
        return self.padder.cut(recording.finish(inputs), fit, shapes), True

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
        if snapshot.table and self._contract.only_arguments:
            raise UserError(
                f"graph: {changes[0]}, but checks='arguments' promises that only"
                " arguments change: record with the default checks"
            )
        self._changes.update(changes)
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
        self._snapshots.insert(
            0, self._take_snapshot(StateSnapshot(self.step, last.state.ran))
        )
        # An old snapshot would keep the old memory of moved tensors alive.
        for old in self._snapshots[1:] if moved else self._snapshots[_MAX_SNAPSHOTS:]:
            self._end_recordings(old)
            self._snapshots.remove(old)

    def _take_snapshot(self, state: StateSnapshot) -> Snapshot:
        learning_rates = LearningRates(self._notes)
        learning_rates.add(state.optimizers)
        snapshot = Snapshot(
            state,
            self._prepare(state),
            learning_rates,
            [] if self._later is None else self._later.stages(state),
        )
        state.refresh()  # torch.compile changes attributes of the step
        return snapshot

    def _end_recordings(self, snapshot: Snapshot) -> None:
        for recording in snapshot.recordings():
            if recording.upgrade is not None:
                recording.upgrade.end()
            recording.drop()
        snapshot.table.clear()

    def _refuse(self, key: Hashable, stopped: Stopped) -> None:
        self._snapshot.refused[key] = stopped.stops
        # The code does not compile, or its results differ from eager.
        self._snapshot.preparation.fails |= any(
            stop.operation == "compiling" or stop.kind == "numerics"
            for stop in stopped.stops
        )
        self._log_stops(stopped.stops)

    def _log_stops(self, stops: tuple[Stop, ...]) -> None:
        for stop in stops:
            if stop not in self._logged:
                log.warning("not replayed: %s", stop)
            self._logged.add(stop)

    def _give_up(self, stop: Stop) -> None:
        self._given_up = (stop,)
        for snapshot in self._snapshots:
            self._end_recordings(snapshot)
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
        refused = [
            stop
            for snapshot in self._snapshots[:1]
            for stops in snapshot.refused.values()
            for stop in stops
        ]
        return tuple(dict.fromkeys([*self._given_up, *refused, *self._obstacles]))

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
                choice.rung
                for snapshot in self._snapshots[:1]
                for choice in snapshot.choices.values()
                if choice.rung is not None
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
