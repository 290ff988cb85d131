"""`torchproof.step`: marks where a step begins, and copies what outlives it.

A function compiled with CUDA graphs keeps its outputs, and what it saves for backward,
in memory that the graphs reuse after the next mark. So the mark belongs at the
beginning of a step, and never between a forward and its backward. Tensors that outlive
a step are copied, once.

A mark is valid for the whole process, a step belongs to one thread. A mark would free
the memory of another thread's step, so it is left out while one is open. torch then
reuses memory as soon as nothing references it.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from torchproof.process import forks
from torchproof.records import UserError
from torchproof.runtime.explained import Explained
from torchproof.runtime.steps.pending_forwards import (
    Forward,
    Place,
    calling_place,
    pending_forward,
    text,
)
from torchproof.runtime.steps.step_counts import Counts, Stats, Tally, name_of
from torchproof.torch_private import step_marks, trees

__all__ = ["Counts", "Stats", "Step", "StepError", "step"]

Function = TypeVar("Function", bound=Callable[..., Any])
Outputs = Literal["copies", "buffers"]
_KEPT = "_kept_by_torchproof_step"


class StepError(UserError):
    """A step begins, or is used, at a place where that is not allowed."""


class _Thread:
    """The step of one thread, and its forwards whose backward may be pending."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.depth = 0
        self.forwards: list[Forward] = []
        self.compiled_calls = 0  # of this process, after the last `run`

    def pending(self) -> list[Forward]:
        self.forwards = [forward for forward in self.forwards if forward.pending]
        return self.forwards

    @property
    def busy(self) -> bool:
        return self.step is not None or any(f.pending for f in list(self.forwards))


class _Process:
    """State that all threads share, under one lock."""

    def __init__(self) -> None:
        self.lock = forks.lock()
        self.local = threading.local()
        self.threads: weakref.WeakSet[_Thread] = weakref.WeakSet()
        self.marks = 0  # made by torchproof
        self.ended = {"training": Tally(), "inference": Tally()}
        forks.register(self)

    def after_fork(self) -> None:
        """The child has only the thread that forked."""
        current = getattr(self.local, "thread", None)
        self.threads = weakref.WeakSet([] if current is None else [current])

    @property
    def thread(self) -> _Thread:
        current: _Thread | None = getattr(self.local, "thread", None)
        if current is None:
            current = self.local.thread = _Thread()
            with self.lock:
                self.threads.add(current)
        return current

    def others_are_busy(self, thread: _Thread) -> bool:
        if len(self.threads) == 1:
            return False
        others = [each for each in forks.alive(self.threads) if each is not thread]
        return any(each.busy for each in others)


_process = _Process()


class _Copies:
    """Copies each tensor once; a copy is not copied again."""

    def __init__(self, on_copy: Callable[[Tensor], None]) -> None:
        self._on_copy = on_copy
        # By id, because == compares elements. The id of a dead tensor may be reused.
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def of(self, value: Any) -> Any:
        """The same value with a copy in place of each tensor."""
        return trees.mapped(value, self._copy, objects=True)

    def _copy(self, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        entry = self._copies.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        copied = tensor.clone()
        self._on_copy(copied)
        for each in (tensor, copied):
            self._copies[id(each)] = weakref.ref(each), copied
        return copied

    def forget(self) -> None:
        self._copies.clear()


class Step:
    """One step: runs compiled functions, and copies tensors that outlive it."""

    def __init__(self, thread: _Thread, place: Place) -> None:
        self._thread = thread
        self._place = place
        self._tally = Tally(steps=1)
        self._copies = _Copies(self._count_copy)
        self._marks = (0, 0)  # all marks, and those of torchproof, at the beginning
        self._training = False
        self._open = True

    @property
    def counts(self) -> Counts:
        """The counts of this step so far."""
        return self._tally.counts()

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `fn` and counts the call; its outputs are valid until the next step."""
        place = calling_place()
        self._assert_open("run", place)
        self._look_for_marks(place)
        self._tally.call(fn, trees.tensors((args, kwargs) if kwargs else args))
        pending = self._thread.pending()
        self._tally.reentries += any(forward.fn == fn for forward in pending)
        output = fn(*args, **kwargs)
        self._training |= any(tensor.requires_grad for tensor in trees.tensors(output))
        if forward := pending_forward(fn, place, output):
            self._thread.forwards.append(forward)
        self._thread.compiled_calls = step_marks.compiled_calls()
        return output

    def keep(self, value: Any) -> Any:
        """A copy that outlives the step; each tensor is copied only once.

        `value` is a tensor, or anything that holds tensors.
        """
        self._assert_open("keep", None)
        return self._copies.of(value)

    # -- beginning and end -----------------------------------------------------------

    def _keep_gradients(self, parameters: tuple[Tensor, ...]) -> None:
        """Copies gradients that exist when a step begins, to accumulate into them.

        Later gradients are added in place, so one copy is enough.
        """
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and not hasattr(gradient, _KEPT):
                parameter.grad = gradient.clone()
                setattr(parameter.grad, _KEPT, True)
                self._count_copy(parameter.grad)

    def _begin(self) -> None:
        with _process.lock:
            if _process.others_are_busy(self._thread):
                self._tally.marks_left_out += 1
            else:
                torch.compiler.cudagraph_mark_step_begin()
                _process.marks += 1
                self._tally.marks += 1
            self._marks = step_marks.marks(), _process.marks

    def _end(self) -> None:
        self._open = False
        self._look_for_marks(None)
        self._copies.forget()
        with _process.lock:
            kind = "training" if self._training else "inference"
            _process.ended[kind].add(self._tally)

    def _assert_open(self, what: str, place: Place | None) -> None:
        if not self._open:
            raise StepError(
                f"{text(place or calling_place())}: {what}() was called on a step that"
                f" has ended; it began at {text(self._place)}"
            )

    # -- during the step -------------------------------------------------------------

    def _look_for_marks(self, place: Place | None) -> None:
        """Counts marks that other code made since the last look."""
        now = step_marks.marks(), _process.marks
        if now == self._marks:
            return
        others = (now[0] - self._marks[0]) - (now[1] - self._marks[1])
        self._marks = now
        self._tally.marks += max(others, 0)  # negative after a reset of torch
        pending = self._thread.pending()
        if others > 0 and pending and place is not None:
            raise StepError(
                f"cudagraph_mark_step_begin() was called before {text(place)}, inside"
                f" the step that began at {text(self._place)}, while {pending[0]}:"
                " remove the call, because the step makes the mark"
            )

    def _count_copy(self, copied: Tensor) -> None:
        self._tally.clones += 1
        self._tally.bytes_cloned += copied.numel() * copied.element_size()


class _Traced:
    """A step inside a function that is being compiled: it becomes part of the graph."""

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def keep(self, value: Any) -> Any:
        return value


class _StepContext:
    """Begins and ends a step, as context manager or decorator; inner ones join it."""

    def __init__(self, outputs: Outputs, parameters: tuple[Tensor, ...]) -> None:
        self._outputs = outputs
        self._parameters = parameters

    def __call__(self, fn: Function) -> Function:
        if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
            raise UserError(
                f"{name_of(fn)} is a generator or coroutine, which is suspended before"
                " it ends: begin a step inside it, with `with torchproof.step():`"
            )

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return fn(*args, **kwargs)
            inner = _process.thread.step is not None
            with self as current:
                output = fn(*args, **kwargs)
                # The output of an inner step does not outlive the outer one.
                raw = inner or self._outputs == "buffers"
                return output if raw else current.keep(output)

        return call  # type: ignore[return-value]

    def __enter__(self) -> Step:
        if torch.compiler.is_compiling():
            return _Traced()  # type: ignore[return-value]
        thread = _process.thread
        if thread.step is None:
            place = calling_place()
            _assert_nothing_pending(thread, place)
            step = Step(thread, place)
            step._keep_gradients(self._parameters)
            step._begin()
            thread.step = step
        thread.depth += 1
        return thread.step

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if torch.compiler.is_compiling():
            return
        thread = _process.thread
        thread.depth -= 1
        if thread.depth == 0 and thread.step is not None:
            step = thread.step
            thread.step = None
            step._end()


class Steps(Explained["Stats"]):
    """A step as context manager and as decorator, and counts of all steps.

    `with torchproof.step() as s:` begins a step: `s.run(model, x)` calls a compiled
    function, `s.keep(value)` copies what is used after the step. A function decorated
    with `@torchproof.step` is a step, and its outputs are copied. If the next step does
    not use them, `@torchproof.step(outputs="buffers")` saves the copy. To accumulate
    gradients over steps, pass `parameters=model.parameters()`.
    """

    __name__ = "step"

    @overload
    def __call__(self, fn: Function) -> Function: ...
    @overload
    def __call__(
        self, *, outputs: Outputs = ..., parameters: Iterable[Tensor] = ...
    ) -> _StepContext: ...
    def __call__(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        outputs: Outputs = "copies",
        parameters: Iterable[Tensor] = (),
    ) -> Any:
        if outputs not in ("copies", "buffers"):
            raise UserError(f"outputs={outputs!r}: choose 'copies' or 'buffers'")
        context = _StepContext(outputs, tuple(parameters))
        return context if fn is None else context(fn)

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `run` of this thread's step."""
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        return self._current("run").run(fn, *args, **kwargs)

    def keep(self, value: Any) -> Any:
        """Calls `keep` of this thread's step."""
        if torch.compiler.is_compiling():
            return value
        return self._current("keep").keep(value)

    def stats(self) -> Stats:
        """The counts of all ended steps of all threads since the last `reset`."""
        with _process.lock:
            return Stats(**{kind: t.counts() for kind, t in _process.ended.items()})

    def status(self) -> Stats:
        """The same, for `torchproof.status`."""
        return self.stats()

    def reset(self) -> None:
        """Sets all counts to zero."""
        with _process.lock:
            _process.ended = {"training": Tally(), "inference": Tally()}

    def _current(self, what: str) -> Step:
        current = _process.thread.step
        if current is None:
            raise StepError(
                f"{text(calling_place())}: {what}() was called outside a step: call it"
                " inside `with torchproof.step():` or a function decorated with"
                " @torchproof.step"
            )
        return current


step = Steps()


def _assert_nothing_pending(thread: _Thread, place: Place) -> None:
    if thread.pending():
        step_marks.release_unused_outputs()  # frees what only the CUDA graphs reference
    for forward in thread.pending():
        raise StepError(
            f"a step cannot begin at {text(place)}: {forward}, and a new step reuses"
            " the memory it needs: run backward() first, delete the output, or call it"
            " under torch.no_grad()"
        )
    if step_marks.compiled_calls() == thread.compiled_calls:  # all went through `run`
        return
    node = step_marks.pending_forward()
    if node is None:
        return
    where = step_marks.place_of(node)
    what = f"the compiled forward at {text(where)}" if where else "a forward"
    raise StepError(
        f"a step cannot begin at {text(place)}: the backward of {what}, called outside"
        " run(), is pending, and a new step reuses the memory it needs: run backward()"
        " first, or delete the output"
    )
