"""How a step becomes a recording that may be used: run in eager and watched, compiled
and rehearsed, recorded, replayed and compared with eager.

In come the step's preparation, what it can see, and one call. Out goes a `Recording`
whose replay does to memory what the step would do; or `Stopped` says why there is none.
Whatever was changed on the way is put back, so that in the end the step has run once,
by its first replay, or not at all.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchproof.records import whose
from torchproof.runtime.cudagraph.call_inputs import (
    Buffers,
    Call,
    shapes_of,
    tensors_in,
)
from torchproof.runtime.cudagraph.capture import RECORDING, Capture, Pool, home_of
from torchproof.runtime.cudagraph.eager_recorder import EagerRecorder
from torchproof.runtime.cudagraph.executed_code import Execution
from torchproof.runtime.cudagraph.graph_status import RecordLater, Stop, Stopped
from torchproof.runtime.cudagraph.optimizers import LearningRates
from torchproof.runtime.cudagraph.output_copies import OutputCopies, mapped
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.recorded_step import Forward
from torchproof.runtime.cudagraph.replay_check import StepResult, compared
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.runtime.cudagraph.step_gradients import Gradients
from torchproof.runtime.tensors.compare import ValueComparison
from torchproof.runtime.tensors.rng_state import RngState

_REHEARSALS = 3  # compile, allocate, and one as it will be
# What a model makes at its first call is there at the second; and what the first run
# has read is watched in the second.
_EAGER_RUNS = 5
_REASONS = 5  # of one kind: one is enough not to record


@dataclass(frozen=True)
class Recorder:
    """Makes recordings of one step."""

    preparation: Preparation
    state: StateSnapshot
    learning_rates: LearningRates
    pool: Pool

    def record(self, call: Call, *, buffers: bool) -> Recording:
        """A recording whose first replay has just been the step on this call."""
        with RECORDING:
            attempt = _Attempt(self, call)
            with attempt.undone_on_error():
                return attempt.recording(buffers=buffers)


class PaddingCheck:
    """A call in eager, to see whether a recording for larger sizes may answer it."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        with RECORDING:
            self._attempt = _Attempt(recorder, call)
            with self._attempt.undone_on_error():
                self._eager = self._attempt.in_eager()
        self.output = self._attempt.output
        if self._attempt.draws:
            told = "the step draws random numbers, so padding cannot be checked"
            raise Stopped(Stop("input", f"not padded: {told}"))
        if self._attempt.inputs.changed:
            told = "the step writes into its arguments"
            raise Stopped(Stop("input", f"not padded: {told}"))

    def assert_same(self, output: Any) -> None:
        """After a replay on the padded call: raises, with memory as it was before."""
        found = compared(
            self._attempt.answer(output),
            self._eager,
            self._attempt.recorder.state.tensors,
        )
        if found.verdict == "wrong":
            self._attempt.undo()
            where = f"at {found.where}: " if found.where else ""
            told = f"not padded: padding changes the answer {where}{found.why}"
            raise Stopped(Stop("numerics", told))


class Recording:
    """One step on one set of shapes: memory for its inputs, a capture, its outputs."""

    def __init__(self, call: Call, inputs: Buffers, capture: Capture) -> None:
        self.shapes = shapes_of(call)
        self.inputs, self.capture = inputs, capture
        self.output_copies: OutputCopies
        self.gradients: Gradients
        self.verdict = ValueComparison("same")
        self.random = False
        self.changed_python = False  # something was made at this first call
        self.writes = False  # into memory that was there before and is read elsewhere
        self.replays = 0
        self.record_s = 0.0
        self.pool_bytes: int | None = None
        self.undo: Callable[[], None] | None = None

    def start(self, call: Call) -> list[Tensor]:
        """Copies a call's tensors in and begins the replay."""
        self.capture.pool.join()
        given = self.inputs.fill(call)
        self.gradients.arrange()
        self.capture.replay()
        self.replays += 1
        return given

    def finish(self, given: list[Tensor]) -> Any:
        """What the step returns, and what it leaves behind."""
        self.gradients.attach()
        self.inputs.give_back(given)
        return self.output_copies()

    def keep(self) -> None:
        """The first replay counts: it need not be undone any more."""
        self.undo = None

    def withdraw(self) -> None:
        """Memory as it was before the first replay."""
        if self.undo is not None:
            self.undo()
        self.undo = None

    def drop(self) -> None:
        self.capture.drop()


class _Attempt:
    """The way to one recording; every stage leaves memory as it found it."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        self.recorder, self.call = recorder, call
        self.device = home_of([*tensors_in(call), *recorder.state.tensors])
        self.gradients = Gradients(recorder.state.parameters)
        self.inputs = Buffers(call)
        self.capture = Capture(self.device, recorder.pool)
        self.chance = RngState.capture({self.device})
        self.eager_recorder = EagerRecorder(self.device)

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """A stage that breaks off leaves memory as it found it, too."""
        try:
            yield
        except BaseException:
            self.undo()
            raise

    def recording(self, *, buffers: bool) -> Recording:
        began = time.monotonic()
        made = Recording(self.call, self.inputs, self.capture)
        eager = self.in_eager()
        plain = self._rehearsed()
        before = self.recorder.pool.bytes()
        output = self._recorded()
        if self.recorder.state.forget_foreign_changes():  # the compiler exchanges some
            self.recorder.state.extend()
        made.output_copies = OutputCopies(output, buffers=buffers)
        made.gradients, made.undo = self.gradients, self.undo
        made.writes = bool(self.eager_recorder.saved)
        made.random, made.changed_python = self.draws, self.changed_python
        self._first_replay(made, eager, plain)
        after = self.recorder.pool.bytes()
        made.pool_bytes = None if after is None else after - (before or 0)
        made.record_s = time.monotonic() - began
        return made

    # -- eager ---------------------------------------------------------------------

    def in_eager(self) -> StepResult:
        """The answer to compare with, and all there is to know about the step."""
        state, learning_rates = self.recorder.state, self.recorder.learning_rates
        if not state.whole:
            why = "the step can see too many objects for all of them to be watched"
            raise Stopped(Stop("python", why))
        if state.strange:
            why = f"{state.strange[0]}, whose memory cannot be watched"
            raise Stopped(Stop("input", why))
        if state.lacks_scale or sys.getprofile() is not None:
            raise RecordLater
        told: list[str] = []
        self.changed_python = False
        for _ in range(_EAGER_RUNS):
            before, told = told, []
            state.refresh()
            numbers, states = learning_rates.numbers(), learning_rates.states()
            answer = self._watched_run()
            moved = self.chance.drawn_since(self.chance.current())
            new = state.forget_foreign_changes() | state.ran.add(self.ran)
            told = [f"changes {change}" for change in state.changes()]
            if learning_rates.numbers() != numbers:
                told.append("changes the learning rate: step schedulers after it")
            self.undo()
            if learning_rates.forget_new_states(states):
                raise RecordLater
            if new:  # it may have changed what was not watched yet
                state.extend()
            self.changed_python |= bool(told)
            if not new and (not told or before):
                break
        else:
            told = told or ["runs other code at every call"]
        told += [f"draws random numbers of {name}" for name in moved - {"torch"}]
        if told:
            does_not = "which a replay does not"
            raise Stopped(
                *(Stop("python", f"the step {each}, {does_not}") for each in told)
            )
        self.draws = "torch" in moved
        if stops := [*self.eager_recorder.stops, *self._unwatchable()]:
            raise Stopped(*stops)
        self.inputs.assert_apart(self.call)
        self.recorder.preparation.learn(self.eager_recorder)
        state.extend()  # what the step has made, and objects that the step can reach only now
        return answer

    def _unwatchable(self) -> Iterator[Stop]:
        yield from self.ran.stops
        opaque = self.recorder.state.unwatchable(self.ran)
        for each in opaque[:_REASONS]:
            yield Stop("python", f"the step reads what cannot be watched: {each}")
        if len(opaque) > _REASONS:
            more = len(opaque) - _REASONS
            yield Stop("python", f"the step reads {more} more objects of this kind")

    def _watched_run(self) -> StepResult:
        preparation = self.recorder.preparation
        self.eager_recorder = EagerRecorder(self.device, traces=preparation.traces)
        self.eager_recorder.beware(self.recorder.state.buffers)
        self.ran = Execution()
        step = preparation.body(preparation.step)
        self.gradients.plant()
        with (
            torch.compiler.set_stance("force_eager"),
            _no_cached_casts(),
            self.recorder.learning_rates.in_memory(),
            preparation.watching(),
            self.capture.listening(self.eager_recorder.hear),
        ):
            output = self.capture.rehearse(self._recorded_eagerly(step))
        self.eager_recorder.settle()
        self.eager_recorder.forget(
            self.gradients.learn(self.eager_recorder.wrote, self.eager_recorder.read)
        )
        self.inputs.changed = [
            place
            for place, tensor in enumerate(self.inputs.tensors)
            if self.eager_recorder.wrote(tensor)
        ]
        self.output = mapped(output, Tensor.detach)
        return self.answer(output)

    def answer(self, output: Any) -> StepResult:
        """Copies of an output, and of buffers and gradients that the step writes."""
        written = {
            f"buffer {number}": buffer
            for number, buffer in enumerate(self.recorder.state.buffers)
            if self.eager_recorder.wrote(buffer)
        }
        return StepResult.of(output, written, self.gradients.found())

    def _recorded_eagerly(self, step: Forward) -> Callable[[], Any]:
        def run() -> Any:
            with self.eager_recorder, self.ran:
                return step(*self.inputs.args, **self.inputs.kwargs)

        return run

    def undo(self) -> None:
        """Memory, gradients and random numbers as before the step."""
        with torch.no_grad():
            for region in self.eager_recorder.saved.values():
                region.restore()
        self.gradients.undo()
        for tensor in self.inputs.tensors:
            tensor.grad = None
        self.chance.restore()

    # -- compiled ------------------------------------------------------------------

    def _rehearsed(self) -> StepResult | None:
        """What the very code that is recorded answers without a recording.

        None where it need not be known.
        """
        preparation, answer = self.recorder.preparation, None
        for last in [False] * (_REHEARSALS - 1) + [True]:
            self.gradients.begin()
            with (
                _explained("compiling"),
                self._as_recorded(),
                preparation.during() as step,
            ):
                output = self.capture.rehearse(
                    lambda: step(*self.inputs.args, **self.inputs.kwargs)
                )
            if last and self.draws:
                answer = self.answer(output)
            del output
            self.undo()
        return answer

    def _recorded(self) -> Any:
        preparation = self.recorder.preparation
        self.gradients.begin()
        with (
            _explained("the capture"),
            self._as_recorded(),
            preparation.during() as step,
        ):
            output = self.capture.record(
                lambda: step(*self.inputs.args, **self.inputs.kwargs)
            )
        self.gradients.recorded()
        return output

    @contextlib.contextmanager
    def _as_recorded(self) -> Iterator[None]:
        with _no_cached_casts(), self.recorder.learning_rates.in_memory():
            yield

    # -- compared ------------------------------------------------------------------

    def _first_replay(
        self, made: Recording, eager: StepResult, plain: StepResult | None
    ) -> None:
        """Replays once; an answer that eager would not give is not handed out.

        Where random numbers were drawn, compiled code draws others than eager: then the
        replay has to give what the same code gives without a recording.
        """
        self.chance.restore()
        made.start(self.call)
        self.gradients.attach()
        given = self.answer(made.output_copies.recorded)
        expected = eager if plain is None else plain
        made.verdict = compared(given, expected, self.recorder.state.tensors)
        if made.verdict.verdict == "wrong":
            made.drop()
            where = made.verdict.where or "the answer"
            raise Stopped(
                Stop(
                    "numerics",
                    f"a replay differs from eager at {where}: {made.verdict.why}",
                )
            )


@contextlib.contextmanager
def _no_cached_casts() -> Iterator[None]:
    """Autocast keeps no copies of weights: a recording would go on using them."""
    enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextlib.contextmanager
def _explained(stage: str) -> Iterator[None]:
    """An error of the compiler or of the capture, with the line that led to it."""
    try:
        yield
    except Stopped:
        raise
    except torch.OutOfMemoryError as error:
        raise Stopped(
            Stop("memory", f"out of memory ({stage}): {_first(error)}")
        ) from error
    except Exception as error:
        first, place = _origin(error)
        where = (place.filename, place.lineno, place.name) if place else ()
        told = f"{stage} failed: {_first(first)}"
        raise Stopped(Stop("capture", told, stage, *where)) from error


def _origin(
    error: BaseException,
) -> tuple[BaseException, traceback.FrameSummary | None]:
    """The error that came first, and the line of the user's code that led to it.

    A capture that is stopped within raises another error at its end.
    """
    chain = [error]
    while (before := chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    for owner in ("user", "library"):
        for each in reversed(chain):
            frames = traceback.extract_tb(each.__traceback__)
            own = [frame for frame in frames if whose(frame.filename) == owner]
            if own:
                return each, own[-1]
    return error, None


def _first(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
