"""The callable that `torchproof.graph` returns.

For each call, it finds or makes the recording for the call's shapes, copies the inputs,
replays the graph, and returns copies of the outputs. Recorded graphs are cached per
snapshot of external state. If that state changed, another recording is used or made, or
the step runs without a graph.

A call that a recording of its shape serves is replayed. What happens to another one,
the state of its shape in the current snapshot decides:

    state      what happens to the call                            next state
    NEW        with wait=False, it runs uncompiled and observed    ANSWERED
    NEW, ANSWERED, POSTPONED
               it is recorded, and its first replay answers        RECORDED
               it cannot be recorded yet, and runs unrecorded      (the same)
               its recording changes Python state, as a model may
               at its first call, and it runs unrecorded           POSTPONED
               so did an earlier recording                         REFUSED
               it cannot be recorded, and runs unrecorded          REFUSED
    RECORDED   it has other gradients: as ANSWERED, up to a limit  RECORDED, REFUSED
    REFUSED    it is tried in the ways of `ladder`, and the fastest one is used

In a new snapshot, shapes begin again as ANSWERED, or as POSTPONED if the last attempt
changed Python state. If a recording is ended because the step created state that it
may have read, its shape is ANSWERED. A step that is given up runs all its calls in the
ways of `ladder`. With wait=False, the very first call is answered before anything is
watched.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchproof.records import UserError
from torchproof.runtime import compile_job
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
from torchproof.runtime.cudagraph.ladder import Kind, Way
from torchproof.runtime.cudagraph.padding import Fit, Padder
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.progressive import Moment, Progress, Upgrade
from torchproof.runtime.cudagraph.recorder import Recorder, Recording
from torchproof.runtime.cudagraph.snapshots import (
    STORM,
    Compilers,
    Options,
    Shape,
    ShapeState,
    Snapshot,
    Snapshots,
)
from torchproof.runtime.explained import Explained
from torchproof.runtime.status_report import State
from torchproof.strategies import NotApplicable, Strategy
from torchproof.torch_private import (
    contract,
    dispatch_modes,
    global_switches,
    thread_state,
)

log = logging.getLogger("torchproof")
_MOST_RECORDINGS = 64
_REVIEW = 16  # after so many calls, whether a step can be recorded is asked again


@dataclass
class _LastReplay:
    """The recording that answered the last call, to recognise the next one by."""

    recording: Recording
    like: LikeCall
    switches: global_switches.Unchanged
    upgrade: Upgrade | None
    tensors: Tensors = ()  # of the call that is answered


@dataclass(frozen=True)
class _LastDiversion:
    """The way that answered the last call, likewise."""

    way: Way
    like: LikeCall


class Graphed(Explained[Status]):
    """Runs the step by replaying it. `status()` says how the calls ran."""

    def __init__(self, step: Callable[..., Any], options: Options) -> None:
        self.step, self.options = step, options
        self.pool = options.pool or Pool()
        self._compilers = Compilers(step, options)
        self._snapshots = Snapshots(step, self._compilers)
        self._progress = Progress(options.deadline_s) if options.later else None
        self._last: _LastReplay | _LastDiversion | None = None
        self._calls = self._plain_calls = self._recordings = self._replays = 0
        self._logged: set[Stop] = set()
        self._obstacles: tuple[Stop, ...] = ()  # why calls were not padded
        self._given_up = options.refused  # why no call is recorded
        if self._progress is None:
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
            if not self._snapshots.every:
                if self._calls == 1 and self._given_up is None:
                    # With `wait=False`: answered before anything else is done.
                    with self._aside(call), self._compilers.eager().apart() as step:
                        return self._run(step, call)
                self._watch_state()
            if self.options.padder is not None:
                return self._padded(self.options.padder, call)
            return self._answer(call)

    def prepare(self, /, *args: Any, **kwargs: Any) -> None:
        """Records a call like this one; its effects are undone."""
        call = args, kwargs
        with self.pool.lock:
            if not self._snapshots.every:
                self._watch_state()
            key = self._key_if_any(call)
            if key is None or self._given_up is not None:
                return
            self._unchanged(known=False)  # a recording is one of the state now
            if self._snapshot.serving(key) is not None:
                return
            recording, failure = self._attempt(self._snapshot.shape(key), call)
            if recording is not None:
                recording.roll_back()
            elif failure is not None:
                self._log_stops(failure)  # the first call shows if the step fails

    def _watch_state(self) -> None:
        """Takes the first snapshot of the external state."""
        if self._given_up is None:
            self._given_up = _lacking_hook(self.options.strategy)
        if self._given_up is not None:
            self._log_stops(self._given_up)
        self._snapshots.take_first()
        if self._progress is not None:
            compile_job.background_worker().warm()

    @property
    def _snapshot(self) -> Snapshot:
        return self._snapshots.current

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
            or (last.upgrade is not None and last.upgrade.is_due)
        ):
            return False
        is_trusted = self.options.trusts(self._calls)
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
        self._snapshots.replayed()
        return True

    def _stays_like(self, last: _LastReplay) -> bool:
        """Whether torch's switches and the external state are as at the last call."""
        return last.switches.check() and self._snapshot.state.unchanged()

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

    def _answer(self, call: Call) -> Any:
        key = self._key_if_any(call)
        if key is None:
            return self._plain(call)
        if self._given_up is not None:
            return self._diverted(self._snapshot.shape(key), call)
        recording = self._snapshot.serving(key)
        if not self._unchanged(known=recording is not None):
            recording = self._snapshot.serving(key)
        if recording is None:
            return self._unserved(self._snapshot.shape(key), call)
        shape = self._snapshot.shape(key)
        upgrade = shape.upgrades.get(recording)
        if upgrade is not None and upgrade.is_due:
            recording = self._advance(upgrade, shape, recording, call)
        self._snapshot.learning_rates.write()
        tensors = call_inputs.tensors_in(call)
        recording.start(tensors)
        self._replays += 1
        self._snapshots.replayed()
        if self.options.padder is None and self.options.depends is None:
            recording.like = recording.like or LikeCall.of(call)
            if recording.like is not None:
                switches = global_switches.Unchanged()
                upgrade = shape.upgrades.get(recording)
                self._last = _LastReplay(recording, recording.like, switches, upgrade)
        return recording.finish(tensors)

    def _advance(
        self, upgrade: Upgrade, shape: Shape, recording: Recording, call: Call
    ) -> Recording:
        """The recording to use from now on: this one, or a compiled one."""
        state = self._snapshot.state
        moment = Moment(
            recording,
            call,
            self._calls,
            recorder=self._recorder,
            within=self.options.within,
        )
        recording.move_gradients()  # before they are noted, in order to be restored
        new = upgrade.advance(moment)
        if not state.unchanged():  # the compiler marks the step
            state.extend()
        if upgrade.is_over or new is not None:
            del shape.upgrades[recording]
        if new is None:
            return recording
        self._count(new)
        if not upgrade.is_over:
            shape.upgrades[new] = upgrade
        shape.recordings[shape.recordings.index(recording)] = new
        recording.drop()
        return new

    def _key_if_any(self, call: Call) -> Hashable | None:
        """The key of a call; None if it cannot be replayed."""
        if dispatch_modes.is_overridden():
            return None
        depends = self.options.depends  # an error of it is the caller's
        declared = None if depends is None else call_inputs.key_of_declared(depends())
        try:
            key = call_inputs.key_of(call), global_switches.values(), declared
            hash(key)
        except Exception as error:
            self._add_obstacle("the arguments cannot be compared", error)
            return None
        return key

    # -- calls without a recording -------------------------------------------------

    def _unserved(self, shape: Shape, call: Call) -> Any:
        """A call without a recording: records it, or runs it without a graph."""
        if not shape.is_refused and (stop := self._limit(shape)) is not None:
            self._refuse(shape, stop)
        if self._given_up is not None or shape.is_refused:
            return self._diverted(shape, call)
        if self._progress is not None:
            # Other recordings may have made calls wait too long.
            if not self._progress.may_pause or thread_state.another_thread_compiles():
                with self._aside(call):
                    return self._prepared(call)
            if shape.state is ShapeState.NEW:
                shape.state = ShapeState.ANSWERED
                with self._aside(call):
                    return self._observed(call)
        recording, failure = self._attempt(shape, call)
        if recording is not None:
            self._replays += 1
            recording.keep()
            return recording.finish(list(call_inputs.tensors_in(call)))
        if self._snapshot.state.must_run_first:
            return self._observed(call)
        is_postponed = failure is None and not shape.is_refused
        with self._aside(call) if is_postponed else contextlib.nullcontext():
            answer = self._prepared(call)  # raises the step's own error
        if failure is not None:
            self._refuse(shape, failure)
        elif not shape.is_refused:  # the first call created state
            if shape.state is ShapeState.POSTPONED:  # recordings may have read it
                self._snapshot.end_recordings()
            self._snapshot.state.extend()
        return answer

    def _limit(self, shape: Shape) -> Stop | None:
        """Why there are enough recordings."""
        if len(self._snapshot.recordings) >= _MOST_RECORDINGS:
            reason = (
                f"there are already {_MOST_RECORDINGS} recordings: pad to fewer shapes,"
                " and pass numbers that change as tensors"
            )
            return Stop("memory", reason)
        if len(shape.recordings) >= STORM:
            reason = (
                "the step reads gradients that are new tensors at every call: move the"
                " backward into the step"
            )
            return Stop("python", reason)
        return None

    def _attempt(
        self, shape: Shape, call: Call
    ) -> tuple[Recording | None, Stop | None]:
        """Records the call, which its first replay has then executed.

        If that raises another error than `Stopped`, returns it as a stop: the step
        itself may fail. A traceback would keep the objects of the failed run alive.
        """
        begin = time.monotonic()
        try:
            with self.options.within():
                recording = self._recorder().record(call)
        except RecordLater:
            return None, None
        except ChangesState as stopped:
            if shape.changes_state:
                self._refuse(shape, *stopped.stops)
            else:
                shape.state, shape.changes_state = ShapeState.POSTPONED, True
            return None, None
        except Stopped as stopped:
            self._refuse(shape, *stopped.stops)
            return None, None
        except NotApplicable as error:
            self._refuse(shape, Stop("capture", str(error)))
            return None, None
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            reason = f"{type(error).__name__} during recording: {text}"
            return None, Stop("capture", reason)
        finally:
            if self._progress is not None:
                self._progress.paused(time.monotonic() - begin)
        self._count(recording)
        if self._progress is not None:
            upgrade = Upgrade(self._progress, self._snapshot.stages, recording)
            if not upgrade.is_over:
                shape.upgrades[recording] = upgrade
        shape.recorded(recording)
        return recording, None

    def _count(self, recording: Recording) -> None:
        self._recordings += 1
        recording.output_copies.are_copied = not self.options.buffers

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
        try:
            with contextlib.ExitStack() as stack:
                step = stack.enter_context(self._snapshot.preparation.uncompiled())
                if sys.getprofile() is None:
                    stack.enter_context(ran)  # which sees the stack, as in a recording
                answer = self._run(step, call)
        finally:
            state.ran.add(ran)
            state.extend()
        return answer

    def _aside(self, call: Call) -> contextlib.AbstractContextManager[None]:
        """Where a call runs without a graph whose shapes will be recorded.

        That is on the stream of the recordings: streams do not share the memory that
        they free, such as that of gradients and of the state of an optimizer.
        """
        devices = (each.device for each in call_inputs.tensors_in(call) if each.is_cuda)
        device = next(devices, None)
        if device is None or device.index != torch.cuda.current_device():
            return contextlib.nullcontext()
        return self.pool.aside(device)

    def _prepared(self, call: Call) -> Any:
        """Runs the step without a graph: compiled if that works, else in eager."""
        preparation = self._snapshot.preparation
        way = preparation.uncompiled() if preparation.fails else preparation.apart()
        with way as step:
            return self._run(step, call)

    def _plain(self, call: Call) -> Any:
        """Runs a step that is not recorded."""
        if self.options.unrecorded is None:
            return self._prepared(call)
        return self._run(self.options.unrecorded, call)

    def _run(self, step: Callable[..., Any], call: Call) -> Any:
        """The outputs are detached, like those of a replay.

        Autograd history that stays alive would break a later capture.
        """
        self._plain_calls += 1
        args, kwargs = call
        return map_tensors(step(*args, **kwargs), Tensor.detach)

    def _diverted(self, shape: Shape, call: Call) -> Any:
        """Runs a call that is refused, in the fastest way that was proved for it."""
        stop = self._given_up or shape.stops[0]
        is_apart = self.options.unrecorded is not None or self._progress is not None
        if is_apart or stop.kind == "recipe":
            return self._plain(call)
        if shape.choice is None:
            self._choose(shape, call, stop)
        way = None if shape.choice is None else shape.choice.way
        if way is None:
            return self._plain(call)
        self._plain_calls += 1
        if self.options.depends is None and (like := LikeCall.of(call)) is not None:
            self._last = _LastDiversion(way, like)
        return way(call)

    def _choose(self, shape: Shape, call: Call, stop: Stop) -> None:
        """Tries the ways; not if this call cannot be tried, because the step fails."""

        def ways() -> list[Way]:
            if self._snapshots.is_storm:  # pieces, too, would be recorded at every call
                every = self._snapshot.ways
                return [way for way in every if way.kind is not Kind.PIECES]
            return self._snapshot.ways

        try:
            shape.choice = ladder.choose(self._recorder(), call, ways, stop)
        except Exception:  # the step raises its own error again
            log.debug("graph: a call is not tried", exc_info=True)
            return
        if shape.choice.rung is not None:
            log.warning("%s", shape.choice.rung)

    # -- padding -------------------------------------------------------------------

    def _padded(self, padder: Padder, call: Call) -> Any:
        """Runs a call through a recording for larger sizes, if that was checked."""
        key = self._key_if_any(call)
        fit = None if key is None else self._fit(padder, call)
        if fit is None or self._given_up is not None:
            return self._answer(call)
        shapes: padding.Shapes | None = None
        if fit.is_padded:
            self._unchanged(known=bool(self._snapshot.recordings))
            shape = self._snapshot.shape(key)
            if shape.cut is None:
                return self._check(padder, shape, call, fit)
            if shape.cut is False:
                return self._answer(call)
            shapes = shape.cut
        before = self._replays
        answer = self._answer(fit.call)
        if self._replays > before:
            padder.count(fit)
        return answer if shapes is None else padding.cut_to(answer, shapes)

    def _fit(self, padder: Padder, call: Call) -> Fit | None:
        """The bucket of a call; None if the call is not padded or padding fails."""
        try:
            return padder.fit(call)
        except Exception as error:
            self._add_obstacle("not padded", error)
            return None

    def _check(self, padder: Padder, shape: Shape, call: Call, fit: Fit) -> Any:
        """The first call of a size: compares the padded replay with eager."""
        self.prepare(*fit.call[0], **fit.call[1])
        key = self._key_if_any(fit.call)
        recording = self._snapshot.serving(key)
        if recording is None:
            is_later = self._snapshot.shape(key).state is ShapeState.POSTPONED
            shape.cut = None if is_later else False
            return self._answer(call)
        tensors = call_inputs.tensors_in(fit.call)
        try:
            shape.cut = self._recorder().replay_padded(recording, tensors, call)
        except RecordLater:
            return self._answer(call)
        except Exception as error:  # the step's own error, which `_answer` raises again
            shape.cut = False
            self._add_obstacle("not padded", error)
            return self._answer(call)
        self._replays += 1
        padder.count(fit)
        return padding.cut_to(recording.finish(tensors), shape.cut)

    # -- external state and reasons -------------------------------------------------

    def _unchanged(self, *, known: bool) -> bool:
        """Whether the external state is unchanged; if not, switches the snapshot.

        `known` says that there is a recording for the call.
        """
        if known and self.options.trusts(self._calls):
            return True
        if self._snapshot.state.unchanged():
            return True
        changes = self._snapshots.differing()
        if not changes:
            return True
        if self.options.only_arguments and self._snapshot.recordings:
            raise UserError(
                f"graph: {changes[0]}, but checks='arguments' promises that only"
                " arguments change: record with the default checks"
            )
        self._last = None  # of this snapshot, which is not the current one any more
        self._snapshots.switch(changes)
        if self._snapshots.is_storm:
            reason = f"the step would be recorded at every call: {changes[0]}"
            self._given_up = Stop("python", reason)
            self._snapshots.end_recordings()
            log.warning("replays are disabled: %s", self._given_up)
        return False

    def _add_obstacle(self, what: str, error: Exception) -> None:
        """Notes why a call is not padded, or cannot be."""
        stop = Stop("input", f"{what}: {type(error).__name__}: {error}")
        stops = error.stops if isinstance(error, Stopped) else (stop,)
        new = tuple(stop for stop in stops if stop not in self._obstacles)
        self._log_stops(*new)
        self._obstacles += new

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

    # -- status ---------------------------------------------------------------------

    @property
    def falls_back(self) -> list[str]:
        """The reasons why calls are not replayed; empty if all are."""
        return [str(stop) for stop in self._stops()]

    @property
    def is_compiled(self) -> bool:
        """Whether there are recordings, and none waits for its code."""
        return self._recordings > 0 and (
            self._progress is None or self._progress.is_over
        )

    def _stops(self) -> tuple[Stop, ...]:
        stops = [] if self._given_up is None else [self._given_up]
        stops += [stop for shape in self._shapes for stop in shape.stops]
        return tuple(dict.fromkeys([*stops, *self._obstacles]))

    @property
    def _shapes(self) -> list[Shape]:
        """Those of the current snapshot."""
        return self._snapshot.shapes if self._snapshots.every else []

    @property
    def state(self) -> State:
        """What calls run now; a recording counts as compiled, also one of eager."""
        if not self._calls:
            return "not called"
        if self._progress is not None and not self._progress.is_over:
            return "compiling"
        if self._snapshots.recordings:
            return "partly compiled" if self._stops() else "compiled"
        if not self._snapshots.every or not self.options.strategy.compiles:
            return "eager"
        return "eager" if self._snapshot.preparation.fails else "partly compiled"

    def status(self) -> Status:
        changes = self._snapshots.changes.items()
        choices = [shape.choice for shape in self._shapes if shape.choice is not None]
        padder = self.options.padder
        return Status(
            strategy=self.options.strategy.name,
            calls=self._calls,
            replays=self._replays,
            plain_calls=self._plain_calls,
            recordings=self._recordings,
            pool_bytes=self.pool.bytes(),
            buckets=tuple(map(_bucket, self._snapshots.recordings)),
            padding=() if padder is None else padder.status(),
            stops=self._stops(),
            changes=tuple(
                f"{change} ({times} times)" if times > 1 else change
                for change, times in changes
            ),
            notes=tuple(self._snapshots.notes),
            stages=() if self._progress is None else self._progress.status(),
            rungs=tuple(each.rung for each in choices if each.rung is not None),
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


def _lacking_hook(strategy: Strategy) -> Stop | None:
    """Why nothing can be recorded on the installed torch."""
    messages = contract.missing("graph")
    if strategy.compiles:  # probing imports Dynamo, which takes seconds
        messages += contract.missing("graph of compiled code")
    return Stop("capture", messages[0]) if messages else None
