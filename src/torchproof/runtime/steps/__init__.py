"""`torchproof.step`: where a step begins, what it runs, and what outlives it.

The outputs of a function compiled with CUDA graphs, and what it saves for its backward,
lie in memory that the graphs use again once a step is marked. So there is one place for
the mark: the beginning of a step, and never between a forward and its backward. And
there is one way out: what outlives a step is copied, once.

Marks are the process's, steps are a thread's. A mark would take the memory of another
thread's step, so it is left out while one is open; torch then uses memory again as soon
as nothing holds it.
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

from torchproof.process import forks
from torchproof.records import UserError
from torchproof.runtime.steps.output_tensors import Copies, mapped, tensors
from torchproof.runtime.steps.pending_forwards import (
    Forward,
    Place,
    awaited,
    calling_place,
    text,
)
from torchproof.runtime.steps.step_counts import Counts, Stats, Tally, name_of
from torchproof.torch_private import step_marks as trees

__all__ = ["Counts", "Stats", "Step", "StepError", "step"]

Function = TypeVar("Function", bound=Callable[..., Any])
Outputs = Literal["copies", "buffers"]
_KEPT = "_kept_by_torchproof_step"


class StepError(UserError):
    """A step begins, or is used, where it must not."""


class _Thread:
    """The step of one thread, and its forwards that may await their backward."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.depth = 0
        self.forwards: list[Forward] = []
        self.compiled_calls = 0  # in this process, when `run` last called

    def pending(self) -> list[Forward]:
        self.forwards = [forward for forward in self.forwards if forward.pending]
        return self.forwards

    @property
    def busy(self) -> bool:
        return self.step is not None or any(f.pending for f in list(self.forwards))


class _Process:
    """What all threads share, under one lock."""

    def __init__(self) -> None:
        self.lock = forks.lock()
        self.local = threading.local()
        self.threads: weakref.WeakSet[_Thread] = weakref.WeakSet()
        self.marks = 0  # made here
        self.ended = {"training": Tally(), "inference": Tally()}
        forks.register(self)

    def after_fork(self) -> None:
        """Steps of other threads are the parent's."""
        mine = getattr(self.local, "thread", None)
        self.threads = weakref.WeakSet([] if mine is None else [mine])

    @property
    def thread(self) -> _Thread:
        found: _Thread | None = getattr(self.local, "thread", None)
        if found is None:
            found = self.local.thread = _Thread()
            with self.lock:
                self.threads.add(found)
        return found

    def others_are_busy(self, thread: _Thread) -> bool:
        if len(self.threads) == 1:
            return False
        return any(each.busy for each in self.threads if each is not thread)


_process = _Process()


class Step:
    """One step: runs compiled functions, and keeps what outlives it."""

    def __init__(self, thread: _Thread, place: Place) -> None:
        self._thread, self._place = thread, place
        self._tally = Tally(steps=1)
        self._copies = Copies(self._count_copy)
        self._marks = (0, 0)  # of anyone, and made here, when the step began
        self._training = False
        self._open = True

    @property
    def counts(self) -> Counts:
        """What this step has done so far."""
        return self._tally.counts()

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fn(*args, **kwargs)`, counted; its outputs are valid until the next step."""
        place = calling_place()
        self._assert_open("run", place)
        self._look_for_marks(place)
        self._tally.call(fn, tensors((args, kwargs) if kwargs else args))
        pending = self._thread.pending()
        self._tally.reentries += any(forward.fn == fn for forward in pending)
        output = fn(*args, **kwargs)
        self._training |= any(tensor.requires_grad for tensor in tensors(output))
        if forward := awaited(fn, place, output):
            self._thread.forwards.append(forward)
        self._thread.compiled_calls = trees.compiled_calls()
        return output

    def keep(self, value: Any) -> Any:
        """A copy that outlives the step; one of each tensor, however often it is kept.

        `value` is a tensor or holds tensors in tuples, lists, dicts and dataclasses.
        """
        self._assert_open("keep", None)
        return mapped(value, self._copies.of)

    # -- beginning and end -----------------------------------------------------------

    def _keep_gradients(self, parameters: tuple[torch.Tensor, ...]) -> None:
        """Those that are still there when a step begins: more will be added to them.

        Later ones are added in place, so that a copy stays one.
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
            self._marks = trees.marks(), _process.marks

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
                f"{text(place or calling_place())}: {what}() of the step that began at"
                f" {text(self._place)} and has ended"
            )

    # -- what happens in between -----------------------------------------------------

    def _look_for_marks(self, place: Place | None) -> None:
        """Marks that somebody else made since the step began, or was last looked at."""
        now = trees.marks(), _process.marks
        if now == self._marks:
            return
        others = (now[0] - self._marks[0]) - (now[1] - self._marks[1])
        self._marks = now
        self._tally.marks += max(others, 0)  # below zero: torch was reset
        pending = self._thread.pending()
        if others > 0 and pending and place is not None:
            raise StepError(
                f"cudagraph_mark_step_begin() was called before {text(place)}, inside"
                f" the step that began at {text(self._place)}, while {pending[0]}:"
                " leave the mark to the step"
            )

    def _count_copy(self, copied: torch.Tensor) -> None:
        self._tally.clones += 1
        self._tally.bytes_cloned += copied.numel() * copied.element_size()


class _Traced:
    """A step inside a function that is being compiled: part of its graph."""

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def keep(self, value: Any) -> Any:
        return value


class _Boundary:
    """A step, or within another one a part of that: for `with`, and as a decorator."""

    def __init__(self, outputs: Outputs, parameters: tuple[torch.Tensor, ...]) -> None:
        self._outputs, self._parameters = outputs, parameters

    def __call__(self, fn: Function) -> Function:
        if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
            raise UserError(
                f"{name_of(fn)} is left and entered again before it ends: begin a step"
                " inside of it, with `with torchproof.step():`"
            )

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return fn(*args, **kwargs)
            inner = _process.thread.step is not None
            with self as begun:
                output = fn(*args, **kwargs)
                # What a part of a step returns does not outlive the step.
                raw = inner or self._outputs == "buffers"
                return output if raw else begun.keep(output)

        return call  # type: ignore[return-value]

    def __enter__(self) -> Step:
        if torch.compiler.is_compiling():
            return _Traced()  # type: ignore[return-value]
        thread = _process.thread
        if thread.step is None:
            place = calling_place()
            _assert_nothing_pending(thread, place)
            began = Step(thread, place)
            began._keep_gradients(self._parameters)
            began._begin()
            thread.step = began
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
            ended, thread.step = thread.step, None
            ended._end()


class _Steps:
    """A step as context manager and as decorator, and what steps have done.

    `with torchproof.step() as s:` begins one: `s.run(model, x)` calls what is compiled,
    `s.keep(value)` copies what is used after the step. A function decorated with
    `@torchproof.step` is a step, and what it returns is kept; where it returns what
    nobody uses in the next step, `@torchproof.step(outputs="buffers")` saves the copy.
    Gradients that add up over steps are kept with `parameters=model.parameters()`.
    """

    __name__ = "step"

    @overload
    def __call__(self, fn: Function) -> Function: ...
    @overload
    def __call__(
        self, *, outputs: Outputs = ..., parameters: Iterable[torch.Tensor] = ...
    ) -> _Boundary: ...
    def __call__(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        outputs: Outputs = "copies",
        parameters: Iterable[torch.Tensor] = (),
    ) -> Any:
        if outputs not in ("copies", "buffers"):
            raise UserError(f"outputs={outputs!r}: choose 'copies' or 'buffers'")
        boundary = _Boundary(outputs, tuple(parameters))
        return boundary if fn is None else boundary(fn)

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`run` of the step that this thread is in."""
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        return self._current("run").run(fn, *args, **kwargs)

    def keep(self, value: Any) -> Any:
        """`keep` of the step that this thread is in."""
        if torch.compiler.is_compiling():
            return value
        return self._current("keep").keep(value)

    def stats(self) -> Stats:
        """All steps of all threads that have ended, since the last `reset`."""
        with _process.lock:
            return Stats(**{kind: t.counts() for kind, t in _process.ended.items()})

    def reset(self) -> None:
        """Count from zero."""
        with _process.lock:
            _process.ended = {"training": Tally(), "inference": Tally()}

    def _current(self, what: str) -> Step:
        found = _process.thread.step
        if found is None:
            raise StepError(
                f"{text(calling_place())}: {what}() outside of a step: call it within"
                " `with torchproof.step():` or a function decorated with it"
            )
        return found


step = _Steps()


def _assert_nothing_pending(thread: _Thread, place: Place) -> None:
    if thread.pending():
        trees.release_unused_outputs()  # what is only held by the graphs themselves
    for forward in thread.pending():
        raise StepError(
            f"a step cannot begin at {text(place)}: {forward}, and a step takes the"
            " memory it needs: run backward() first, drop what it returned, or call it"
            " under torch.no_grad()"
        )
    if trees.compiled_calls() == thread.compiled_calls:  # all went through `run`
        return
    node = trees.pending_forward()
    if node is None:
        return
    where = trees.place_of(node)
    what = f"the compiled forward at {text(where)}" if where else "a forward"
    raise StepError(
        f"a step cannot begin at {text(place)}: {what}, called outside of run(),"
        " awaits its backward, and a step takes the memory it needs: run backward()"
        " first, or drop what it returned"
    )
