"""Records a step as a CUDA graph and checks the recording against eager.

Takes the step's preparation, a snapshot of its state, and one call. Returns a
`Recording` whose replay has the same effects as the step, or raises `Stopped` with the
reason. The step runs in eager under observation, is compiled and rehearsed, recorded,
replayed once, and compared with eager. All side effects on the way are undone: in the
end, the step has run once, by its first replay, or not at all.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchproof.records import whose
from torchproof.runtime.cudagraph import padding
from torchproof.runtime.cudagraph.call_inputs import (
    Buffers,
    Call,
    LikeCall,
    Tensors,
    has_gradient,
    map_tensors,
    shapes_of,
    tensors_in,
)
from torchproof.runtime.cudagraph.capture import RECORDING, Capture, Pool, home_of
from torchproof.runtime.cudagraph.eager_recorder import EagerRecorder
from torchproof.runtime.cudagraph.executed_code import Execution
from torchproof.runtime.cudagraph.graph_status import (
    ChangesState,
    RecordLater,
    Stop,
    Stopped,
)
from torchproof.runtime.cudagraph.optimizers import LearningRates
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.python_undo import PythonUndo
from torchproof.runtime.cudagraph.reachable_state import has_plain_memory
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.runtime.cudagraph.step_gradients import Gradients
from torchproof.runtime.tensors import strides
from torchproof.runtime.tensors.rng_state import RngState
from torchproof.runtime.tensors.storages import Copies, key_of
from torchproof.torch_private import (
    comparison,
    recording_times,
    remote_graphs,
    step_capture,
    trees,
)

_REHEARSALS = 3  # one to compile, one to allocate, one as in the capture
# State that the first run read is watched in the second.
_EAGER_RUNS = 5
_REASONS = 5  # the most messages of one kind
# A step without these names in its code does not use gradients.
_GRADIENTS = frozenset({"grad", "backward"})
_GRADIENT = frozenset({"grad"})


@dataclass(frozen=True)
class Recorder:
    """Records one step."""

    preparation: Preparation
    state: StateSnapshot
    learning_rates: LearningRates
    pool: Pool

    def record(self, call: Call, *, like: Recording | None = None) -> Recording:
        """Records this call; the first replay of the recording has just executed it.

        `like` is a recording that could answer the call: what its eager run showed need
        not be observed again.
        """
        with recording_times.announced_step(shapes_of(call)), self.attempt(call) as one:
            return one.recording(like)

    def trace(self, call: Call, *, like: Recording) -> None:
        """Runs this call once with the preparation's backend, and undoes it."""
        with recording_times.announced_step(shapes_of(call)), self.attempt(call) as one:
            one.trace(like)

    def replay_padded(
        self, recording: Recording, tensors: Tensors, call: Call
    ) -> padding.Shapes:
        """Replays a call with its tensors padded; returns the shapes of eager's output.

        Raises `Stopped` if the output cut to them differs from eager; the replay is
        undone then.
        """
        recording.move_gradients()  # before they are noted, in order to be restored
        with self.attempt(call) as attempt:
            expected = attempt.in_eager()
            if attempt.draws or attempt.inputs.changed:
                why = "draws random numbers" if attempt.draws else "writes to arguments"
                raise Stopped(Stop("input", f"not padded: the step {why}"))
            recording.start(tensors)
            recording.gradients.attach()
            recorded = recording.output_copies.recorded
            output = padding.cut_to(recorded, attempt.output_shapes)
            what = "not padded: with padding, the result differs from eager"
            attempt.assert_same(attempt.result(output), expected, what)
        return attempt.output_shapes

    @contextlib.contextmanager
    def attempt(self, call: Call) -> Iterator[_Attempt]:
        """Runs of a call, which are undone if the block raises."""
        with RECORDING:
            attempt = _Attempt(self, call)
            with attempt.undone_on_error():
                yield attempt


class Trial:
    """Runs one call in several ways, and undoes each run.

    Raises `Stopped` if what the step does cannot be undone.
    """

    def __init__(self, recorder: Recorder, call: Call) -> None:
        recorder.state.extend()  # the step may reach other objects than when it stopped
        with recorder.attempt(call) as self._attempt:
            self._expected = self._attempt.repeated_in_eager()
        self.draws = self._attempt.draws
        self._is_first = True

    def run(self, run: Callable[[Call], Any]) -> tuple[StepResult, float]:
        """The result of a call and its seconds, up to the end of its last kernel."""
        with RECORDING, self._attempt.undone_on_error(), _explained("a trial"):
            return self._attempt.tried(run)

    def compare(self, result: StepResult) -> None:
        """Raises `Stopped` if a result differs from eager's.

        Compiled code draws other random numbers: of a step that draws any, the first
        result stands for eager's.
        """
        if self.draws and self._is_first:
            self._expected, self._is_first = result, False
        else:
            self._attempt.assert_same(result, self._expected, "differs from eager")


@dataclass(eq=False)
class Recording:
    """One step for one set of shapes: input buffers, a CUDA graph, output copies."""

    shapes: tuple[str, ...]
    inputs: Buffers
    capture: Capture
    output_copies: OutputCopies
    gradients: Gradients
    random: bool  # whether the step draws random numbers
    written: list[Tensor]  # existing memory, apart from the inputs
    undo: Callable[[], None] | None  # of the first replay
    verdict: comparison.Comparison = field(init=False)  # of the first replay
    replays: int = 0
    record_s: float = 0.0
    pool_bytes: int | None = None
    like: LikeCall | None = None  # recognises its calls

    @property
    def can_be_discarded(self) -> bool:
        """Whether a replay whose outputs are not used changes nothing.

        It draws no numbers, writes to no existing memory and replaces no gradients.
        """
        writes = self.random or self.written or self.inputs.changed
        return not writes and not self.gradients.exist

    def start(self, tensors: Tensors) -> None:
        """Copies a call's tensors to the buffers and starts the replay."""
        self.capture.pool.join()
        self.move_gradients()
        self.inputs.fill(tensors)
        self.gradients.fill()
        self.capture.replay()
        self.replays += 1

    def finish(self, tensors: Tensors) -> Any:
        """Returns the outputs; sets gradients and written arguments of the caller."""
        self.gradients.attach()
        self.capture.pool.gradients.add(self.gradients)
        self.inputs.give_back(tensors)
        return self.output_copies()

    def move_gradients(self) -> None:
        """Copies gradients of other recordings that a replay would overwrite."""
        self.capture.pool.gradients.move_out_of(self.gradients)

    def keep(self) -> None:
        """Accepts the effects of the first replay."""
        self.undo = None
        self.gradients.keep()
        step_capture.free_host_memory()

    def roll_back(self) -> None:
        """Undoes the effects of the first replay."""
        if self.undo is not None:
            self.undo()
        self.keep()

    def drop(self) -> None:
        self.capture.drop()


class OutputCopies:
    """Returns a copy of one recorded output at each call, or itself.

    No other code passes the memory of a recording to the caller. The copies have the
    strides that eager's tensors have, in the order of `eager_strides`.
    """

    are_copied = True

    def __init__(self, recorded: Any, eager_strides: list[Strides]) -> None:
        self.recorded = map_tensors(recorded, Tensor.detach)
        tensors = _each_tensor(self.recorded)
        own = list(map(_strides_of, tensors))
        if [s and len(s) for s in own] != [s and len(s) for s in eager_strides]:
            eager_strides = own  # another structure, which the comparison finds
        self._strides = {
            id(tensor): each
            for tensor, each in zip(tensors, eager_strides, strict=True)
            if each is not None and strides.needs_strides(tensor, each)
        }
        self._template = trees.template(self.recorded)

    def __call__(self) -> Any:
        if not self.are_copied:
            return self.recorded
        if self._template is None:
            return map_tensors(self.recorded, self._copy)
        tensors, build = self._template
        copy = self._copy if self._strides else Tensor.clone
        return build([copy(each) for each in tensors])

    def _copy(self, tensor: Tensor) -> Tensor:
        of_copy = self._strides.get(id(tensor))
        return tensor.clone() if of_copy is None else strides.clone(tensor, of_copy)


Strides = tuple[int, ...] | None  # None if the tensor has none, such as a sparse one


def _each_tensor(output: Any) -> list[Tensor]:
    """The tensors of an output, each once, in an order that its structure defines."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(output, note)
    return tensors


def _strides_of(tensor: Tensor) -> Strides:
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return tensor.stride() if is_plain else None


class _Attempt:
    """One attempt to record a call; every stage undoes its effects on memory."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        self.call = call
        self.preparation, self.state = recorder.preparation, recorder.state
        self.learning_rates, self.pool = recorder.learning_rates, recorder.pool
        self.device = home_of([*tensors_in(call), *self.state.reachable.tensors])
        self.gradients = Gradients(self.state.reachable.parameters)
        self.inputs = Buffers(call)
        self.capture = Capture(self.device, self.pool)
        self.rng_state = RngState.capture({self.device})
        self._python_undo: PythonUndo | None = None  # while the step runs in trials
        # What the last run in eager showed.
        self.eager_recorder = EagerRecorder(self.device)
        self.ran = Execution()
        self.draws = False  # whether the step draws random numbers on the device
        self.strides: list[Strides] = []  # of the outputs
        self.output_shapes: padding.Shapes = ()

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Undoes the effects of a stage that raises."""
        try:
            yield
        except BaseException as error:
            if self._python_undo is not None:
                self._restore_python(self._python_undo)
            # Undoing needs memory for offloaded gradients: frees what the failed code
            # held, such as activations.
            for each in _chain(error):
                traceback.clear_frames(each.__traceback__)
            self.undo()
            self.capture.release()  # the step runs again, on another stream
            raise

    def recording(self, like: Recording | None) -> Recording:
        start = time.monotonic()
        if like is None and self._may_drop_gradients():
            self.gradients.offload()
        self.capture.release()
        expected = self.in_eager() if like is None else self._in_eager_like(like)
        self.capture.release()
        expected = self._rehearsed() or expected
        before = self.pool.bytes()
        output = self._run_prepared("the capture", self.capture.record)
        self.gradients.recorded()
        recording = Recording(
            shapes_of(self.call),
            self.inputs,
            self.capture,
            OutputCopies(output, self.strides),
            self.gradients,
            random=self.draws,
            written=self._written(),
            undo=self.undo,
        )
        self._first_replay(recording, expected)
        after = self.pool.bytes()
        recording.pool_bytes = None if after is None else after - (before or 0)
        recording.record_s = time.monotonic() - start
        return recording

    def trace(self, like: Recording) -> None:
        self._learn_from(like)
        self.capture.release()
        self._run_prepared("compiling", self.capture.rehearse)
        self.undo()
        self.capture.release()

    def tried(self, run: Callable[[Call], Any]) -> tuple[StepResult, float]:
        """Runs the call, and undoes it."""
        undo = self._saved_python(PythonUndo())
        self.gradients.begin()
        self.capture.synchronize()
        begin = time.perf_counter()
        output = run((self.inputs.args, self.inputs.kwargs))
        self.capture.synchronize()
        seconds = time.perf_counter() - begin
        result = self.copied_result(output)
        del output
        self._reset()
        self._restore_python(undo)
        self._python_undo = None
        return result, seconds

    # -- eager ---------------------------------------------------------------------

    def in_eager(self) -> StepResult:
        """Runs the step in eager until it is stable; returns the expected result.

        Raises `Stopped` if the step does something that a replay cannot repeat.
        """
        self._assert_watchable()
        self.learning_rates.add(self.state.reachable.optimizers)
        result, changes, actions = self._stable_run()
        if changes or actions:
            actions = [f"changes state ({each})" for each in changes] + actions
            reasons = [f"the step {each}, which a replay does not" for each in actions]
            kind = ChangesState if len(actions) == len(changes) else Stopped
            raise kind(*(Stop("python", each) for each in reasons))
        self._assert_watched([*self.eager_recorder.stops, *self.ran.stops])
        self.inputs.assert_apart(self.call)
        self._assert_gradients_unread()
        if self.preparation.needs_eager_run or self.preparation.reads_each_shape:
            self._show_eager_run()
        self.state.extend()  # the run may have created objects
        if self.learning_rates.add(self.state.reachable.optimizers):
            raise RecordLater
        return result

    def repeated_in_eager(self) -> StepResult:
        """The result in eager of a step that may do what a replay cannot."""
        self._assert_watchable()
        result, _, _ = self._stable_run()
        self._assert_watched()
        self.state.extend()
        return result

    def _assert_watchable(self) -> None:
        state, reachable = self.state, self.state.reachable
        if not reachable.whole:
            raise _too_many_objects()
        for each in reachable.unwatchable_tensors:
            raise Stopped(Stop("input", f"{each}, whose memory cannot be watched"))
        is_profiled = sys.getprofile() is not None
        if is_profiled or reachable.lacks_scale or state.must_run_first:
            raise RecordLater
        if state.ran.codes:
            self._assert_watched()

    def _assert_watched(self, stops: Iterable[Stop] = ()) -> None:
        """Stops for the given reasons, and for what was read that cannot be watched."""
        opaque = self.state.reachable.opaque
        reasons = [f"state that cannot be watched: {each}" for each in opaque]
        if len(reasons) > _REASONS:
            more = f"{len(reasons) - _REASONS} more objects that cannot be watched"
            reasons[_REASONS:] = [more]
        found = [Stop("python", f"the step reads {each}") for each in reasons]
        if stops := [*stops, *found]:
            raise Stopped(*stops)

    def _assert_gradients_unread(self) -> None:
        """Stops if the step may read a gradient of an argument: buffers have none."""
        if self.state.ran.mentions(_GRADIENT) and any(
            each.requires_grad and has_gradient(each) for each in tensors_in(self.call)
        ):
            reason = "an argument has a gradient, which the step may read"
            raise Stopped(Stop("input", reason))

    def _learn_from(self, like: Recording) -> None:
        """Takes over what another recording of this call has shown.

        The state has not changed since then: the step executes the same code and writes
        to the same memory.
        """
        self.draws = like.random
        self.inputs.changed = [*like.inputs.changed]
        gradients = self.gradients.learn_from(like.gradients)
        inputs = (self.inputs.tensors[place] for place in self.inputs.changed)
        self.eager_recorder = self._new_eager_recorder()
        self.eager_recorder.save([*like.written, *inputs, *gradients])
        if self.preparation.needs_eager_run:
            self._show_eager_run()
            self.gradients.undo()

    def _show_eager_run(self) -> None:
        """Runs the step once for the preparation, and undoes it.

        Apart from the watched runs, because it takes long to watch observers.
        """
        self.capture.release()
        self.gradients.begin()
        with self.preparation.watching():
            self._run_in_eager()
        self._reset()
        self.preparation.learn()

    def _in_eager_like(self, like: Recording) -> StepResult:
        """One eager run, not observed; returns the expected result."""
        self._learn_from(like)
        self.gradients.begin()
        result = self._noted(self._run_in_eager())
        self.undo()
        return result

    def _stable_run(self) -> tuple[StepResult, list[str], list[str]]:
        """Repeats the eager run until it executes no new code.

        Returns its result, and what a replay would not repeat: changes of state, and
        other actions. Every run is undone, also what it changed in Python objects.
        """
        state, learning_rates = self.state, self.learning_rates
        undo = PythonUndo()
        for number in range(_EAGER_RUNS):
            if number:
                self.capture.release()
            state.refresh()
            self._saved_python(undo)
            numbers = learning_rates.numbers()
            with_zeros = self._may_drop_gradients()
            try:
                result = self._watched_run(with_zeros=with_zeros)
            except torch.OutOfMemoryError as error:
                raise _out_of_memory("the eager run", error) from error
            moved = self.rng_state.drawn_since(self.rng_state.current())
            new = state.ran.add(self.ran)
            changes, actions = list(state.changes()), []
            if learning_rates.numbers() != numbers:
                actions.append("changes the learning rate: step schedulers after it")
            self._reset()
            # It may have changed state that was not watched yet.
            if new or changes or actions:
                self._restore_python(undo)
            new |= self._may_drop_gradients() != with_zeros or self._had_to_reload()
            if not new:
                break
        else:
            if not changes and not actions:
                actions = ["runs different code at every call"]
        self._python_undo = None
        actions += [f"draws random numbers from {name}" for name in moved - {"torch"}]
        self.draws = "torch" in moved
        return result, changes, actions

    def _saved_python(self, undo: PythonUndo) -> PythonUndo:
        """Saves the Python objects that a run may change, until they are restored."""
        owners = self.state.reachable.owners()
        if not undo.save([self.preparation.step, self.call, *owners]):
            raise _too_many_objects()
        self._python_undo = undo
        return undo

    def _restore_python(self, undo: PythonUndo) -> None:
        """Restores the Python objects that the last run changed."""
        self.state.ran.add(self.ran)
        self.state.extend()
        undo.restore(self.state.reachable)
        self.state.extend()

    def _had_to_reload(self) -> bool:
        """Whether the step needs the gradients that the last run was without."""
        if not self.gradients.are_offloaded or self.gradients.may_stay_offloaded:
            return False
        self.gradients.reload()
        return True

    def _uses_gradients(self) -> bool:
        """Whether the step may use gradients, as far as the runs so far show."""
        return self.gradients.are_used or self.state.ran.mentions(_GRADIENTS)

    def _may_drop_gradients(self) -> bool:
        """Whether code of the step may replace gradients, such as `zero_grad`.

        Zeros that are there before a run then show whether it adds to them.
        """
        ran = self.state.ran
        return self._uses_gradients() and (
            self.ran.mentions(_GRADIENT) or ran.mentions(_GRADIENT)
        )

    def _watched_run(self, *, with_zeros: bool) -> StepResult:
        self.gradients.begin()
        with self.capture.aside():  # where the step can reuse the memory
            zeros = self.gradients.set_zeros() if with_zeros else []
        self.eager_recorder = observer = self._new_eager_recorder(zeros)
        del zeros
        observer.save_as_precaution(self.state.reachable.buffers)
        self.ran = Execution(observer.handle_read)
        with self.capture.listening(observer.handle_warning):
            output = self._run_in_eager(observer, self.ran)
        observer.drop_precautions()
        self.gradients.learn(
            observer.wrote,
            observer.read,
            used_zeros=observer.uses_scratch,
            may_drop=self._may_drop_gradients(),
        )
        tensors = self.inputs.tensors
        self.inputs.changed = [
            place for place, each in enumerate(tensors) if observer.wrote(each)
        ]
        # The buffers show a step the elements of an argument, and no memory beside.
        if any(
            key_of(each) in observer.storages_read
            or (key_of(each) in observer.storages_restrided and strides.has_gaps(each))
            for each in tensors
        ):
            why = "the step looks at the storage of an argument: pass a copy"
            observer.stops.append(Stop("input", why))
        return self._noted(output)

    def _noted(self, output: Any) -> StepResult:
        """Notes the layout of eager's output; returns the result in copies."""
        self.strides = list(map(_strides_of, _each_tensor(output)))
        self.output_shapes = padding.shapes_of(output)
        return self.copied_result(output)

    def _new_eager_recorder(self, scratch: Iterable[Tensor] = ()) -> EagerRecorder:
        outside = [*self.state.reachable.tensors, *self.inputs.tensors]
        return EagerRecorder(self.device, outside, scratch=scratch)

    def _run_in_eager(self, *observers: contextlib.AbstractContextManager[Any]) -> Any:
        step = self.preparation.body(self.preparation.step)

        def run() -> Any:
            with contextlib.ExitStack() as stack:
                for observer in observers:
                    stack.enter_context(observer)
                return step(*self.inputs.args, **self.inputs.kwargs)

        with step_capture.force_eager(), self._as_recorded():
            return self.capture.rehearse(run)

    # -- undone --------------------------------------------------------------------

    def undo(self) -> None:
        """Restores memory, gradients and the random state from before the step."""
        self._reset()
        self.gradients.undo()

    def _reset(self) -> None:
        """Undoes a run; gradients that are offloaded stay so."""
        with torch.no_grad():
            for region in self.eager_recorder.saved.values():
                region.restore()
        self.gradients.begin()
        for tensor in self.inputs.tensors:
            tensor.grad = None
        self.rng_state.restore()

    def _written(self) -> list[Tensor]:
        """The existing memory that the step writes, apart from the inputs."""
        inputs = {key_of(each) for each in self.inputs.tensors}
        saved = self.eager_recorder.saved.items()
        return [region.live for key, region in saved if key not in inputs]

    # -- compiled ------------------------------------------------------------------

    def _rehearsed(self) -> StepResult | None:
        """Compiles the step, and returns its result without a recording.

        Returns None unless the step draws random numbers, when it is needed.
        """
        result = None
        for last in [False] * (_REHEARSALS - 1) + [True]:
            output = self._run_prepared("compiling", self.capture.rehearse)
            if last and self.draws:
                result = self.copied_result(output)
            del output
            self._reset()
        return result

    def _run_prepared(self, stage: str, run: Callable[[Callable[[], Any]], Any]) -> Any:
        """Runs the prepared step by `run`: without a capture, or in one."""
        self.gradients.begin()
        with (
            _explained(stage),
            self._as_recorded(),
            self.preparation.during() as step,
        ):
            return run(lambda: step(*self.inputs.args, **self.inputs.kwargs))

    @contextlib.contextmanager
    def _as_recorded(self) -> Iterator[None]:
        with _no_cached_casts(), self.learning_rates.in_memory():
            yield

    # -- compared ------------------------------------------------------------------

    def _first_replay(self, recording: Recording, expected: StepResult) -> None:
        """Replays once; raises `Stopped` if the result is not as expected.

        Compiled code draws other random numbers than eager. If the step draws any,
        compiled code without a recording gives the expected result.
        """
        self.rng_state.restore()
        self.gradients.begin()
        recording.start(tensors_in(self.call))
        self.gradients.attach()
        actual = self.result(recording.output_copies.recorded)
        try:
            what = "a replay differs from eager"
            recording.verdict = self.assert_same(actual, expected, what)
        except Stopped:
            recording.drop()
            raise

    def result(self, output: Any) -> StepResult:
        """An output, and buffers and gradients that the step writes."""
        written = {
            f"buffer {number}": buffer
            for number, buffer in enumerate(self.state.reachable.buffers)
            if self.eager_recorder.wrote(buffer)
        }
        parts = {**trees.values_of(output, "output"), **written}
        return StepResult(parts, self.gradients.current())

    def copied_result(self, output: Any) -> StepResult:
        """The result in copies, which stay as they are."""
        result, copies = self.result(output), Copies()
        return StepResult(
            {label: _copy(part, copies) for label, part in result.output.items()},
            {label: _copy(part, copies) for label, part in result.gradients.items()},
        )

    def assert_same(
        self, actual: StepResult, expected: StepResult, what: str
    ) -> comparison.Comparison:
        """Raises `Stopped` if a result is wrong; the reason begins with `what`."""
        found = compare_results(actual, expected, self.state.reachable.tensors)
        if found.verdict == "wrong":
            where = found.where or "the result"
            raise Stopped(Stop("numerics", f"{what} at {where}: {found.why}"))
        return found


@contextlib.contextmanager
def _no_cached_casts() -> Iterator[None]:
    """Disables the autocast cache: a recording would keep using stale weight copies."""
    enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextlib.contextmanager
def _explained(stage: str) -> Iterator[None]:
    """Turns an error of the compiler or of the capture into `Stopped` with its line."""
    try:
        yield
    except (Stopped, remote_graphs.NotDeferred):
        raise
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(stage, error) from error
    except Exception as error:
        for each in _chain(error):
            if isinstance(each, remote_graphs.NotDeferred):  # Dynamo wraps it
                raise each from None
        cause, place = _origin(error)
        where = (place.filename, place.lineno, place.name) if place else ()
        reason = f"{stage} failed: {_first_line(cause)}"
        raise Stopped(Stop("capture", reason, stage, *where)) from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _too_many_objects() -> Stopped:
    why = "the step can reach too many objects to watch all of them"
    return Stopped(Stop("python", why))


def _out_of_memory(stage: str, error: BaseException) -> Stopped:
    reason = f"out of memory ({stage}), so pass less at once or free memory"
    return Stopped(Stop("memory", f"{reason}: {_first_line(error)}"))


def _origin(
    error: BaseException,
) -> tuple[BaseException, traceback.FrameSummary | None]:
    """The first error of the chain, and the line of user code that caused it.

    A capture that fails inside raises another error at its end.
    """
    chain = [error]
    while (before := chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    for owner in ("user", "library"):
        for each in reversed(chain):
            frames = traceback.extract_tb(each.__traceback__)
            owned = [frame for frame in frames if whose(frame.filename) == owner]
            if owned:
                return each, owned[-1]
    return error, None


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


# -- comparing results -----------------------------------------------------------------


@dataclass(frozen=True)
class StepResult:
    """The outputs with the written buffers, and the gradients of a run."""

    output: comparison.Answers
    gradients: comparison.Answers


@dataclass(frozen=True)
class _Copy:
    """A copy of a tensor, in host memory if it is large."""

    tensor: Tensor
    device: torch.device

    def load(self) -> Tensor:
        return self.tensor.to(self.device)


def _copy(part: Any, copies: Copies) -> Any:
    if not isinstance(part, Tensor):
        return part
    tensor = part.detach()
    copy = copies.make(tensor) if has_plain_memory(tensor) else tensor.clone()
    if copy is None:
        size = tensor.numel() * tensor.itemsize / 1e9
        reason = f"no room to keep {size:.3g} GB of eager's result for the comparison"
        raise Stopped(Stop("memory", f"{reason}: free memory"))
    return _Copy(copy, part.device)


def _empty(part: Tensor | _Copy) -> Tensor:
    """A tensor of the same type on the same device."""
    dtype = part.tensor.dtype if isinstance(part, _Copy) else part.dtype
    return torch.empty(0, dtype=dtype, device=part.device)


def _loaded(part: Any) -> Any:
    return part.load() if isinstance(part, _Copy) else part


def compare_results(
    actual: StepResult, expected: StepResult, weights: Collection[Tensor]
) -> comparison.Comparison:
    """Compares outputs and gradients within tolerances; returns the worse verdict.

    Strides do not count: copies of outputs get eager's. The dtypes of `weights` widen
    the tolerances, because they took part in the results.
    """
    return comparison.worst(
        [
            _compared(actual.output, expected.output, weights, gradients=False),
            _compared(actual.gradients, expected.gradients, weights, gradients=True),
        ]
    )


def _compared(
    actual: comparison.Answers,
    expected: comparison.Answers,
    weights: Collection[Tensor],
    *,
    gradients: bool,
) -> comparison.Comparison:
    """Compares one value after the other, so that few are on the device at a time."""
    results = [each for each in expected.values() if isinstance(each, Tensor | _Copy)]
    types = comparison.types_in_use([*map(_empty, results), *weights], weights)
    tolerance = comparison.tolerance_for(
        types, map(_loaded, results), gradients=gradients
    )
    compared = {
        label: comparison.compare(
            _part(actual, label), _part(expected, label), tolerance=tolerance
        )
        for label in dict.fromkeys((*expected, *actual))
    }
    if not compared:
        return comparison.Comparison("same", 0.0)
    return comparison.summary(compared)


def _part(parts: comparison.Answers, label: str) -> comparison.Answers:
    return {label: _loaded(parts[label])} if label in parts else {}
