"""A step that is replayed: the callable that `torchproof.graph` returns.

For each call: the recording that fits its shapes is found, or made; inputs are copied
in, the graph is replayed, and copies of the outputs are handed out. What the recording
cannot know has changed is looked for, and leads to another recording or to a plain run.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchproof.records import UserError
from torchproof.runtime.cudagraph import call_inputs, padding
from torchproof.runtime.cudagraph.bucket_planner import Buckets
from torchproof.runtime.cudagraph.call_inputs import Call
from torchproof.runtime.cudagraph.capture import Pool
from torchproof.runtime.cudagraph.graph_status import (
    Bucket,
    RecordLater,
    Status,
    Stop,
    Stopped,
)
from torchproof.runtime.cudagraph.optimizers import LearningRates
from torchproof.runtime.cudagraph.output_copies import mapped
from torchproof.runtime.cudagraph.padder import Fit, Padder
from torchproof.runtime.cudagraph.padding import Shapes
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.recorder import PaddingCheck, Recorder, Recording
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.strategies import NotApplicable
from torchproof.torch_private import dispatch_modes

log = logging.getLogger("torchproof")
Within = Callable[[], contextlib.AbstractContextManager[Any]]
# A step whose surroundings change this often between two replays is not recorded.
_STORM = 4
_MOST_RECORDINGS = 64
_MAX_SNAPSHOTS = 4  # train and eval, say, each with and without something


@dataclass
class Snapshot:
    """Everything the step could see at one time, and its recordings from that time."""

    state: StateSnapshot
    preparation: Preparation
    settings: list[dict[str, Any]]
    table: dict[Hashable, list[Recording]] = field(default_factory=dict)
    cuts: dict[Hashable, Shapes | None] = field(default_factory=dict)  # None: as it is
    refused: dict[Hashable, tuple[Stop, ...]] = field(default_factory=dict)

    def recordings(self) -> list[Recording]:
        return [each for some in self.table.values() for each in some]

    def fitting(self, key: Hashable) -> Recording | None:
        for recording in self.table.get(key, ()):
            if recording.gradients.fits():
                return recording
        return None


class Graphed:
    """Calls the step by replaying it. `status()` says what became of the calls."""

    def __init__(
        self,
        step: Callable[..., Any],
        prepare: Callable[[StateSnapshot], Preparation],
        *,
        pool: Pool,
        buffers: bool = False,
        padder: Padder | None = None,
        within: Within = contextlib.nullcontext,  # a recording is made
        refused: Stop | None = None,  # nothing is to be recorded
    ) -> None:
        self.step, self.pool, self.buffers = step, pool, buffers
        self._within = within
        self.padder = padder
        self._prepare = prepare
        state = StateSnapshot(step)
        self._learning_rates = LearningRates(state.optimizers)
        self._notes = self._learning_rates.prepare()
        self._snapshots = [self._take_snapshot(state)]
        self._changes: Counter[str] = Counter()
        self._failure: Stop | None = None  # of the last attempt to record
        self._restless = 0  # changes since the last replay that was handed out
        self._calls = self._plain_calls = self._recordings = self._replays = 0
        self._clones = self._cloned_bytes = 0  # of recordings that are gone
        self._given_up: tuple[Stop, ...] = () if refused is None else (refused,)
        self._tell(self._given_up)
        self._obstacles: tuple[Stop, ...] = ()  # to padding

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        with self.pool.turn:
            return self._padded((args, kwargs))

    def prepare(self, /, *args: Any, **kwargs: Any) -> None:
        """Makes the recording for a call like this one, and leaves no other trace."""
        call = args, kwargs
        with self.pool.turn:
            key = self._key_if_any(call)
            if self._given_up or key is None or self._snapshot.fitting(key):
                return
            recording = self._attempt(key, call)
            if recording is not None:
                recording.withdraw()
            elif self._failure is not None:  # the first call tells whose error it is
                self._tell((self._failure,))
                self._failure = None

    @property
    def _snapshot(self) -> Snapshot:
        return self._snapshots[0]

    # -- one call ------------------------------------------------------------------

    def _answer(self, call: Call) -> Any:
        key = self._key_if_any(call)
        if self._given_up or key is None:
            return self._plain(call)
        recording = self._snapshot.fitting(key)
        given = None
        # Where nothing is lost if a replay has to be thrown away, the device need not
        # wait until everything has been looked at.
        if recording is not None and not recording.writes and not recording.random:
            given = recording.start(call)
        if not self._unchanged():
            recording, given = self._snapshot.fitting(key), None
        if recording is None:
            return self._first(key, call)
        if given is None:
            self._learning_rates.write()
            given = recording.start(call)
        self._restless = 0
        self._replays += 1
        return recording.finish(given)

    def _key(self, call: Call) -> Hashable:
        return call_inputs.key_of(call), call_inputs.surroundings()

    def _key_if_any(self, call: Call) -> Hashable | None:
        """None where torch's functions are overridden, and for strange arguments."""
        if dispatch_modes.is_overridden():
            return None
        try:
            key = self._key(call)
            hash(key)
        except Exception as error:
            told = f"the arguments cannot be compared: {type(error).__name__}: {error}"
            self._hinder(Stop("input", told))
            return None
        return key

    def _first(self, key: Hashable, call: Call) -> Any:
        """A call that no recording serves: the recording is made by it."""
        if self._given_up or key in self._snapshot.refused:
            return self._plain(call)
        if len(self._snapshot.recordings()) >= _MOST_RECORDINGS:
            told = f"there are {_MOST_RECORDINGS} recordings: pad to fewer shapes"
            self._refuse(key, Stopped(Stop("memory", told)))
            return self._plain(call)
        if len(self._snapshot.table.get(key, ())) >= _STORM:
            told = "it reads gradients that are others at every call: do the backward"
            self._refuse(key, Stopped(Stop("python", f"{told} inside of the step")))
            return self._plain(call)
        # Outside of any `except`: an error would keep what the failed run had made.
        recording = self._attempt(key, call)
        if recording is None:
            failure, self._failure = self._failure, None
            answer = self._plain(call)  # with an error of its own, if it has one
            if failure is not None:
                self._refuse(key, Stopped(failure))
            elif key not in self._snapshot.refused:  # its first call made something
                self._snapshot.state.extend()
            return answer
        self._replays += 1
        recording.keep()
        return recording.finish(list(call_inputs.tensors_in(call)))

    def _attempt(self, key: Hashable, call: Call) -> Recording | None:
        """A recording that this call has just been replayed by; None if there is none.

        The call is refused from then on, or it is tried again at the next one.
        """
        try:
            return self._record(key, call)
        except RecordLater:
            return None
        except Stopped as stopped:
            self._refuse(key, stopped)
            return None
        except Exception as error:
            told = f"{type(error).__name__} while it was recorded: {error}"
            self._failure = Stop("capture", told)
            return None

    def _record(self, key: Hashable, call: Call) -> Recording:
        call_inputs.assert_finite(call)
        snapshot = self._snapshot
        try:
            with self._within():
                recording = self._recorder().record(call, buffers=self.buffers)
        except NotApplicable as error:
            raise Stopped(Stop("capture", str(error))) from error
        self._recordings += 1
        if recording.changed_python:
            # What earlier recordings read may have been replaced by this first call.
            self._end_recordings(snapshot)
        snapshot.table.setdefault(key, []).append(recording)
        if self.padder is not None:
            self.padder.learn(call, recording.pool_bytes)
        return recording

    def _recorder(self) -> Recorder:
        snapshot = self._snapshot
        return Recorder(
            snapshot.preparation, snapshot.state, self._learning_rates, self.pool
        )

    def _plain(self, call: Call) -> Any:
        """The step without a graph: compiled if that works, else as it is.

        What it returns has no history, as what is replayed has none: so nothing of
        this step stays that would get in the way of a capture.
        """
        self._plain_calls += 1
        args, kwargs = call
        preparation = self._snapshot.preparation
        with (
            preparation.uncompiled()
            if preparation.fails
            else preparation.apart() as step
        ):
            return mapped(step(*args, **kwargs), Tensor.detach)

    # -- padding -------------------------------------------------------------------

    def _padded(self, call: Call) -> Any:
        """The call by a recording for larger sizes, where that was seen to be right."""
        fit = self._fit(call)
        if self.padder is None or fit is None or self._given_up:
            return self._answer(call)
        before = self._replays
        answer, served = self._fitted(self.padder, call, fit)
        if served and self._replays > before:
            self.padder.served[fit.size] += 1
        return answer

    def _fit(self, call: Call) -> Fit | None:
        """None for a call that is not padded, also if that fails."""
        if self.padder is None or self._key_if_any(call) is None:
            return None
        try:
            return self.padder.fit(call)
        except Exception as error:
            self._hinder(Stop("input", f"not padded: {type(error).__name__}: {error}"))
            return None

    def _hinder(self, *stops: Stop) -> None:
        new = tuple(stop for stop in stops if stop not in self._obstacles)
        self._tell(new)
        self._obstacles += new

    def _fitted(self, padder: Padder, call: Call, fit: Fit) -> tuple[Any, bool]:
        """The answer, and whether the bucket gave it."""
        if not fit.padded:
            return self._answer(call), True
        self._unchanged()
        cuts = self._snapshot.cuts
        key = self._key(call), *fit.bucket.values()
        if key not in cuts:
            cuts[key] = None
            return self._check(key, call, fit)
        if (shapes := cuts[key]) is None:
            return self._answer(call), False
        return padder.cut(self._answer(fit.grown), fit, shapes), True

    def _check(self, key: Hashable, call: Call, fit: Fit) -> tuple[Any, bool]:
        """The first call of a size: padded, it has to answer as eager does without."""
        assert self.padder is not None
        self.prepare(*fit.grown[0], **fit.grown[1])
        recording = self._snapshot.fitting(self._key(fit.grown))
        if recording is None:
            return self._answer(call), False
        try:
            check = PaddingCheck(self._recorder(), call)
            shapes = padding.shapes_of(check.output)
            given = recording.start(fit.grown)
            recording.gradients.attach()
            check.assert_same(
                self.padder.cut(recording.output_copies.recorded, fit, shapes)
            )
        except RecordLater:
            del self._snapshot.cuts[key]
            return self._answer(call), False
        except Stopped as stopped:
            self._hinder(*stopped.stops)
            return self._answer(call), False
        except Exception as error:  # the step's own, which it raises again
            self._hinder(Stop("input", f"not padded: {type(error).__name__}: {error}"))
            return self._answer(call), False
        self._snapshot.cuts[key] = shapes
        self._replays += 1
        return self.padder.cut(recording.finish(given), fit, shapes), True

    def plan(self, **limits: Any) -> Buckets:
        """Buckets for the sizes seen so far: `captures=`, `budget_bytes=` and so on.

        Recordings that exist say how many bytes others will take. `use(...)` them.
        """
        if self.padder is None:
            raise UserError("graph: say what may be padded, pad={...}, to plan buckets")
        return self.padder.plan(**limits)

    def use(self, buckets: Buckets) -> None:
        """From here on, calls are padded to these sizes."""
        if self.padder is None:
            raise UserError("graph: say what may be padded, pad={...}, to use buckets")
        self.padder.use(buckets)

    # -- what changes --------------------------------------------------------------

    def _unchanged(self) -> bool:
        """Whether the step sees what it saw; else the snapshot is another afterwards."""
        snapshot = self._snapshot
        if snapshot.state.unchanged() and not self._learning_rates.changes(
            snapshot.settings
        ):
            return True
        try:
            told = self._differences(snapshot)
        except Exception as error:  # of something that is being changed
            told = [f"what the step reads cannot be compared: {error!r}"]
        if not told:  # other objects, but equal ones
            snapshot.state.refresh()
            return True
        self._changes.update(told)
        if not self._returned():
            self._restless += 1
            self._start_snapshot(snapshot)
        if self._restless >= _STORM:
            told = [f"it would be recorded at every call: {told[0]}"]
            self._give_up(Stop("python", told[0]))
        return False

    def _differences(self, snapshot: Snapshot) -> list[str]:
        return snapshot.state.changes() + self._learning_rates.changes(
            snapshot.settings
        )

    def _returned(self) -> bool:
        """Whether everything is as it was at an earlier time that is remembered."""
        for snapshot in self._snapshots[1:]:
            if not self._differences(snapshot):
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
        # A snapshot whose tensors lie elsewhere would keep their old memory.
        for old in self._snapshots[1:] if moved else self._snapshots[_MAX_SNAPSHOTS:]:
            self._end_recordings(old)
            self._snapshots.remove(old)

    def _take_snapshot(self, state: StateSnapshot) -> Snapshot:
        snapshot = Snapshot(
            state, self._prepare(state), self._learning_rates.settings()
        )
        state.refresh()  # torch.compile leaves its mark on what it is given
        return snapshot

    def _end_recordings(self, snapshot: Snapshot) -> None:
        for recording in snapshot.recordings():
            self._clones += recording.output_copies.clones
            self._cloned_bytes += recording.output_copies.cloned_bytes
            recording.drop()
        snapshot.table.clear()

    def _refuse(self, key: Hashable, stopped: Stopped) -> None:
        self._snapshot.refused[key] = stopped.stops
        # Code that cannot be made, and code that answers otherwise than eager.
        self._snapshot.preparation.fails |= any(
            stop.operation == "compiling" or stop.kind == "numerics"
            for stop in stopped.stops
        )
        self._tell(stopped.stops)

    def _tell(self, stops: tuple[Stop, ...]) -> None:
        for stop in stops:
            log.warning("not replayed: %s", stop)

    def _give_up(self, stop: Stop) -> None:
        self._given_up = (stop,)
        for snapshot in self._snapshots:
            self._end_recordings(snapshot)
        log.warning("not replayed any more: %s", stop)

    # -- what became of it ---------------------------------------------------------

    @property
    def falls_back(self) -> list[str]:
        """Why calls are not replayed; empty if all are."""
        return [str(stop) for stop in self._stops()]

    def _stops(self) -> tuple[Stop, ...]:
        refused = [s for stops in self._snapshot.refused.values() for s in stops]
        return tuple(dict.fromkeys([*self._given_up, *refused, *self._obstacles]))

    def status(self) -> Status:
        every = [each for snapshot in self._snapshots for each in snapshot.recordings()]
        output_copies = [each.output_copies for each in every]
        return Status(
            strategy=self._snapshot.preparation.name,
            calls=self._calls,
            replays=self._replays,
            plain_calls=self._plain_calls,
            recordings=self._recordings,
            pool_bytes=self.pool.bytes(),
            clones=self._clones + sum(each.clones for each in output_copies),
            cloned_bytes=self._cloned_bytes
            + sum(e.cloned_bytes for e in output_copies),
            buckets=tuple(_bucket(each) for each in every),
            padding=None if self.padder is None else self.padder.counted().to_json(),
            stops=self._stops(),
            changes=tuple(
                f"{told} ({times} times)" if times > 1 else told
                for told, times in self._changes.items()
            ),
            notes=tuple(self._notes),
        )


def _bucket(recording: Recording) -> Bucket:
    verdict = recording.verdict
    return Bucket(
        shapes=recording.shapes,
        replays=recording.replays,
        pool_bytes=recording.pool_bytes,
        record_s=recording.record_s,
        verdict="random" if recording.random else verdict.verdict,
        error=verdict.error,
    )
