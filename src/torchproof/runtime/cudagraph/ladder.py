"""How a step runs that cannot be recorded as a whole.

It may be compiled, with a CUDA graph of torch's own for each compiled piece
(`mode="reduce-overhead"`), compiled without graphs, or eager. Each of these ways runs
one call, which is undone, and its result is compared with eager's. The fastest one that
gives the same is used for all calls of the same shapes.
"""

from __future__ import annotations

import contextlib
import enum
import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchproof.runtime.cudagraph.call_inputs import Call, map_tensors, shapes_of
from torchproof.runtime.cudagraph.graph_status import Rung, Stop, Stopped
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.recorder import Recorder, Trial
from torchproof.torch_private import step_capture

_RUNS = 8  # torch records a piece in its second call
_TIMED = 5  # the last of them


class Kind(enum.Enum):
    """The ways to run a step without one graph for the whole of it."""

    PIECES = "graph per compiled piece"
    COMPILED = "compiled"
    EAGER = "eager"


@dataclass(frozen=True)
class Way:
    """One way to run the step."""

    kind: Kind
    preparation: Preparation
    # What may have gradients; None if no gradients are asked for.
    parameters: Callable[[], list[tuple[str, Tensor]]] | None

    @property
    def keeps_gradients(self) -> bool:
        """Whether a call copies gradients, for which it has to know all parameters."""
        return self.kind is Kind.PIECES and self.parameters is not None

    def __call__(self, call: Call) -> Any:
        """Runs a call; nothing that it returns is overwritten by the next one."""
        args, kwargs = call
        if self.kind is Kind.EAGER:
            with self.preparation.uncompiled() as step:
                return map_tensors(step(*args, **kwargs), Tensor.detach)
        if self.kind is Kind.COMPILED:
            return map_tensors(self.preparation.ready(*args, **kwargs), Tensor.detach)
        self._keep_gradients()
        torch.compiler.cudagraph_mark_step_begin()
        with _recovered():
            return map_tensors(self.preparation.ready(*args, **kwargs), _copy)

    def _keep_gradients(self) -> None:
        """Copies gradients: the graphs may write where they put them last."""
        every = [] if self.parameters is None else self.parameters()
        kept = [each for _, each in every if each.grad is not None]
        if kept:
            gradients = [each.grad for each in kept if each.grad is not None]
            with torch.no_grad():
                copies = step_capture.copies_of(gradients)
            for parameter, copy in zip(kept, copies, strict=True):
                parameter.grad = copy


@contextlib.contextmanager
def _recovered() -> Iterator[None]:
    """Resets torch after an error, from which a recording of its own never ended."""
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
    try:
        yield
    except BaseException:
        if stream is not None:
            step_capture.end_failed_recording(stream)
            # That of a backward fails in a thread of autograd, which leaves no trace
            # here but random generators that seem to be captured.
            with contextlib.suppress(RuntimeError):  # the device may be lost
                step_capture.capture_nothing(torch.cuda.Stream(stream.device))
        raise


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


@dataclass(frozen=True)
class Choice:
    """The way that is used for one set of shapes."""

    way: Way | None  # None: as the step was prepared
    rung: Rung | None


def choose(
    recorder: Recorder, call: Call, make: Callable[[], list[Way]], stop: Stop
) -> Choice:
    """The fastest way that gives eager's result; each run of the call is undone."""
    shapes = shapes_of(call)
    try:
        trial = Trial(recorder, call)
    except Stopped as stopped:  # its effects cannot be undone
        if stop in stopped.stops:
            return Choice(None, None)
        return Choice(None, Rung(shapes, None, str(stop), {}, (str(stopped),)))
    ways = make()
    if trial.draws:  # the graphs are compared with the same code without them
        ways = sorted(ways, key=lambda way: way.kind is Kind.PIECES)
    seconds: dict[str, float | None] = {}
    refusals: list[str] = []
    best: Way | None = None
    least = math.inf
    for way in ways:
        name = way.kind.value
        is_best_in_pieces = best is not None and best.kind is Kind.PIECES
        if way.kind is Kind.COMPILED and is_best_in_pieces and not trial.draws:
            continue  # the same code with more launches
        try:
            seconds[name] = taken = _seconds(trial, way)
        except Stopped as stopped:
            refusals.append(f"{name}: {stopped}")
            seconds[name] = None
        else:
            if taken < least:
                best, least = way, taken
    recorder.state.extend()
    used = None if best is None else best.kind.value
    return Choice(best, Rung(shapes, used, str(stop), seconds, tuple(refusals)))


def _seconds(trial: Trial, way: Way) -> float:
    """The seconds of a call; raises `Stopped` if it fails or differs from eager."""
    timed = []
    for _ in range(_RUNS):
        with step_capture.many_shapes(), warnings.catch_warnings():
            # A piece may launch no kernel at all.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            result, seconds = trial.run(way)
        timed.append(seconds)
    if way.kind is not Kind.EAGER:
        trial.compare(result)
    return statistics.median(timed[-_TIMED:])
