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
from torchproof.runtime.cudagraph.capture import RECORDING, Pool, Tape, home_of
from torchproof.runtime.cudagraph.eager_recorder import Witness
from torchproof.runtime.cudagraph.executed_code import Execution
from torchproof.runtime.cudagraph.graph_status import NotYet, Stop, Stopped
from torchproof.runtime.cudagraph.optimizers import Rates
from torchproof.runtime.cudagraph.output_copies import Handout, mapped
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.recorded_step import Forward
from torchproof.runtime.cudagraph.replay_check import Answer, compared
from torchproof.runtime.cudagraph.state_snapshot import Sight
from torchproof.runtime.cudagraph.step_gradients import Gradients
from torchproof.runtime.tensors.compare import ValueComparison
from torchproof.runtime.tensors.rng_state import RngState

_REHEARSALS = 3  # compile, allocate, and one as it will be
# What a model makes at its first call is there at the second; and what the first run
# has read is watched in the second.
_EAGER_RUNS = 5
_REASONS = 5  # of one kind: one is enough not to record


@dataclass(frozen=True)
class Maker:
    """Makes recordings of one step."""

    preparation: Preparation
    sight: Sight
    rates: Rates
    pool: Pool

    def record(self, call: Call, *, buffers: bool) -> Recording:
        """A recording whose first replay has just been the step on this call."""
        with RECORDING:
            making = _Making(self, call)
            with making.undone_on_error():
                return making.recording(buffers=buffers)


class Check:
    """A call in eager, to see whether a recording for larger sizes may answer it."""

    def __init__(self, maker: Maker, call: Call) -> None:
        with RECORDING:
            self._making = _Making(maker, call)
            with self._making.undone_on_error():
                self._eager = self._making.in_eager()
        self.output = self._making.output
        if self._making.draws:
            told = "the step draws random numbers, so padding cannot be checked"
            raise Stopped(Stop("input", f"not padded: {told}"))
        if self._making.inputs.changed:
            told = "the step writes into its arguments"
            raise Stopped(Stop("input", f"not padded: {told}"))

    def assert_same(self, output: Any) -> None:
        """After a replay on the padded call: raises, with memory as it was before."""
        found = compared(
            self._making.answer(output), self._eager, self._making.maker.sight.tensors
        )
        if found.verdict == "wrong":
            self._making.undo()
            where = f"at {found.where}: " if found.where else ""
            told = f"not padded: padding changes the answer {where}{found.why}"
            raise Stopped(Stop("numerics", told))


class Recording:
    """One step on one set of shapes: memory for its inputs, a tape, its outputs."""

    def __init__(self, call: Call, inputs: Buffers, tape: Tape) -> None:
        self.shapes = shapes_of(call)
        self.inputs, self.tape = inputs, tape
        self.handout: Handout
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
        self.tape.pool.join()
        given = self.inputs.fill(call)
        self.gradients.arrange()
        self.tape.replay()
        self.replays += 1
        return given

    def finish(self, given: list[Tensor]) -> Any:
        """What the step returns, and what it leaves behind."""
        self.gradients.attach()
        self.inputs.give_back(given)
        return self.handout()

    def keep(self) -> None:
        """The first replay counts: it need not be undone any more."""
        self.undo = None

    def withdraw(self) -> None:
        """Memory as it was before the first replay."""
        if self.undo is not None:
            self.undo()
        self.undo = None

    def drop(self) -> None:
        self.tape.drop()


class _Making:
    """The way to one recording; every stage leaves memory as it found it."""

    def __init__(self, maker: Maker, call: Call) -> None:
        self.maker, self.call = maker, call
        self.device = home_of([*tensors_in(call), *maker.sight.tensors])
        self.gradients = Gradients(maker.sight.parameters)
        self.inputs = Buffers(call)
        self.tape = Tape(self.device, maker.pool)
        self.chance = RngState.capture({self.device})
        self.witness = Witness(self.device)

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
        made = Recording(self.call, self.inputs, self.tape)
        eager = self.in_eager()
        plain = self._rehearsed()
        before = self.maker.pool.bytes()
        output = self._recorded()
        if self.maker.sight.forget_foreign_changes():  # the compiler exchanges some
            self.maker.sight.extend()
        made.handout = Handout(output, buffers=buffers)
        made.gradients, made.undo = self.gradients, self.undo
        made.writes = bool(self.witness.saved)
        made.random, made.changed_python = self.draws, self.changed_python
        self._first_replay(made, eager, plain)
        after = self.maker.pool.bytes()
        made.pool_bytes = None if after is None else after - (before or 0)
        made.record_s = time.monotonic() - began
        return made

    # -- eager ---------------------------------------------------------------------

    def in_eager(self) -> Answer:
        """The answer to compare with, and all there is to know about the step."""
        sight, rates = self.maker.sight, self.maker.rates
        if not sight.whole:
            why = "the step can see too many objects for all of them to be watched"
            raise Stopped(Stop("python", why))
        if sight.strange:
            why = f"{sight.strange[0]}, whose memory cannot be watched"
            raise Stopped(Stop("input", why))
        if sight.lacks_scale or sys.getprofile() is not None:
            raise NotYet
        told: list[str] = []
        self.changed_python = False
        for _ in range(_EAGER_RUNS):
            before, told = told, []
            sight.refresh()
            numbers, states = rates.numbers(), rates.states()
            answer = self._watched_run()
            moved = self.chance.drawn_since(self.chance.current())
            new = sight.forget_foreign_changes() | sight.ran.add(self.ran)
            told = [f"changes {change}" for change in sight.changes()]
            if rates.numbers() != numbers:
                told.append("changes the learning rate: step schedulers after it")
            self.undo()
            if rates.forget_new_states(states):
                raise NotYet
            if new:  # it may have changed what was not watched yet
                sight.extend()
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
        if stops := [*self.witness.stops, *self._unwatchable()]:
            raise Stopped(*stops)
        self.inputs.assert_apart(self.call)
        self.maker.preparation.learn(self.witness)
        sight.extend()  # what the step has made, and objects that are new in its sight
        return answer

    def _unwatchable(self) -> Iterator[Stop]:
        yield from self.ran.stops
        opaque = self.maker.sight.unwatchable(self.ran)
        for each in opaque[:_REASONS]:
            yield Stop("python", f"the step reads what cannot be watched: {each}")
        if len(opaque) > _REASONS:
            more = len(opaque) - _REASONS
            yield Stop("python", f"the step reads {more} more objects of this kind")

    def _watched_run(self) -> Answer:
        preparation = self.maker.preparation
        self.witness = Witness(self.device, traces=preparation.traces)
        self.witness.beware(self.maker.sight.buffers)
        self.ran = Execution()
        step = preparation.body(preparation.step)
        self.gradients.plant()
        with (
            torch.compiler.set_stance("force_eager"),
            _no_cached_casts(),
            self.maker.rates.in_memory(),
            preparation.watching(),
            self.tape.listening(self.witness.hear),
        ):
            output = self.tape.rehearse(self._witnessed(step))
        self.witness.settle()
        self.witness.forget(self.gradients.learn(self.witness.wrote, self.witness.read))
        self.inputs.changed = [
            place
            for place, tensor in enumerate(self.inputs.tensors)
            if self.witness.wrote(tensor)
        ]
        self.output = mapped(output, Tensor.detach)
        return self.answer(output)

    def answer(self, output: Any) -> Answer:
        """Copies of an output, and of buffers and gradients that the step writes."""
        written = {
            f"buffer {number}": buffer
            for number, buffer in enumerate(self.maker.sight.buffers)
            if self.witness.wrote(buffer)
        }
        return Answer.of(output, written, self.gradients.found())

    def _witnessed(self, step: Forward) -> Callable[[], Any]:
        def run() -> Any:
            with self.witness, self.ran:
                return step(*self.inputs.args, **self.inputs.kwargs)

        return run

    def undo(self) -> None:
        """Memory, gradients and random numbers as before the step."""
        with torch.no_grad():
            for region in self.witness.saved.values():
                region.restore()
        self.gradients.undo()
        for tensor in self.inputs.tensors:
            tensor.grad = None
        self.chance.restore()

    # -- compiled ------------------------------------------------------------------

    def _rehearsed(self) -> Answer | None:
        """What the very code that is recorded answers without a recording.

        None where it need not be known.
        """
        preparation, answer = self.maker.preparation, None
        for last in [False] * (_REHEARSALS - 1) + [True]:
            self.gradients.begin()
            with (
                _explained("compiling"),
                self._as_recorded(),
                preparation.during() as step,
            ):
                output = self.tape.rehearse(
                    lambda: step(*self.inputs.args, **self.inputs.kwargs)
                )
            if last and self.draws:
                answer = self.answer(output)
            del output
            self.undo()
        return answer

    def _recorded(self) -> Any:
        preparation = self.maker.preparation
        self.gradients.begin()
        with (
            _explained("the capture"),
            self._as_recorded(),
            preparation.during() as step,
        ):
            output = self.tape.record(
                lambda: step(*self.inputs.args, **self.inputs.kwargs)
            )
        self.gradients.recorded()
        return output

    @contextlib.contextmanager
    def _as_recorded(self) -> Iterator[None]:
        with _no_cached_casts(), self.maker.rates.in_memory():
            yield

    # -- compared ------------------------------------------------------------------

    def _first_replay(
        self, made: Recording, eager: Answer, plain: Answer | None
    ) -> None:
        """Replays once; an answer that eager would not give is not handed out.

        Where random numbers were drawn, compiled code draws others than eager: then the
        replay has to give what the same code gives without a recording.
        """
        self.chance.restore()
        made.start(self.call)
        self.gradients.attach()
        given = self.answer(made.handout.recorded)
        expected = eager if plain is None else plain
        made.verdict = compared(given, expected, self.maker.sight.tensors)
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
