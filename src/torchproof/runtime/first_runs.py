"""Guards the first run of a compiled graph, so that a failure does no harm.

The inputs that the run writes to and the RNG state are saved before. If the run fails,
both are restored, and this run and all later ones use the uncompiled graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchproof.runtime import compile_phases, interruptible_thread
from torchproof.runtime.tensors.storages import free_bytes

# The phases of a first run that still compile: only in these is it interrupted.
_COMPILING = frozenset(
    {
        "autotuning",
        "graph recording",
        "Triton compiler",
        "C++ compiler",
        "code generation",
        "worker pool",
        "lock",
    }
)
_SHARE = 0.5  # of free memory that inputs of a run may be copied into

Run = Callable[..., Any]


class Recorder(Protocol):
    """Receives the result of a graph's first run."""

    def first_run_passed(self, name: str) -> None: ...
    def first_run_failed(self, name: str, error: BaseException) -> None: ...
    def first_run_until(self) -> float: ...


def guarded_forward(
    name: str,
    compiled: Run,
    eager: Run,
    recorder: Recorder,
    *,
    changed: list[int] | None,
) -> Run:
    """Guards a compiled forward graph; `changed` are the inputs it writes to, if known.

    If there is no memory for a copy of them, a failure propagates.
    """

    def first(*args: Any) -> Any:
        before = SavedInputs.of(
            value
            for number, value in enumerate(args)
            if changed is None or number in changed
        )
        try:
            answer = _within_deadline(lambda: compiled(*args), recorder)
        except (Exception, interruptible_thread.Interrupted) as error:
            if before is None:
                raise
            before.restore_after(name, error)
            answer = eager(*args)  # raises if the error is the model's own
            recorder.first_run_failed(name, error)
            _redirect(call, eager)
            return answer
        _redirect(call, compiled)
        recorder.first_run_passed(name)
        return answer

    call = functools.partial(first)
    return call


def _redirect(call: functools.partial[Any], run: Run) -> None:
    """Changes what later calls run; a Python function between would cost a frame."""
    call.__setstate__((run, (), {}, {}))  # type: ignore[attr-defined]


def guarded_backward(
    name: str, run: Run, eager: Run, recorder: Recorder
) -> tuple[Run, Callable[[], Run]]:
    """Guards a compiled backward graph; also returns what to run afterwards.

    A backward graph may write to tensors that its forward saved. They are copied if
    there is memory; if not, a failure propagates.
    """
    chosen = run

    def first(args: list[Any]) -> Any:
        nonlocal chosen
        before = SavedInputs.of(v for v in args if not isinstance(v, nn.Parameter))
        # The compiled graph empties the list `args`.
        inputs = list(args) if before is not None else []
        try:
            return _within_deadline(lambda: run(args), recorder)
        except (Exception, interruptible_thread.Interrupted) as error:
            if before is None:
                raise
            before.restore_after(name, error)
            recorder.first_run_failed(name, error)
            chosen = eager
            return eager(inputs)

    return first, lambda: chosen


def _within_deadline(run: Callable[[], Any], recorder: Recorder) -> Any:
    until = recorder.first_run_until()
    with interruptible_thread.interrupt_after(until, _is_compiling):
        return run()


def _is_compiling(thread_id: int) -> bool:
    """Whether the thread is compiling kernels, and not running them."""
    stack = interruptible_thread.stack_of(thread_id)
    return (
        compile_phases.phase_of_frames([(f.filename, f.name) for f in stack])
        in _COMPILING
    )


def _fits(tensors: Sequence[Tensor]) -> bool:
    sizes: dict[torch.device, int] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.itemsize
        sizes[tensor.device] = sizes.get(tensor.device, 0) + size
    return all(size < _SHARE * free_bytes(device) for device, size in sizes.items())


class SavedInputs:
    """Copies of a run's tensors and of the RNG state before it."""

    @classmethod
    def of(cls, values: Iterable[Any]) -> SavedInputs | None:
        """None if copies of the tensors would take too much of the free memory."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        return cls(tensors) if _fits(tensors) else None

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [
            (tensor, tensor.detach().clone(), tensor.grad_fn) for tensor in tensors
        ]
        self._cpu = torch.get_rng_state()
        self._cuda = (
            torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        )

    def restore_after(self, name: str, error: BaseException) -> None:
        if device_is_lost():
            raise RuntimeError(
                f"{name} has broken the CUDA context, and only a new process can use"
                " the device; with `example=` a child process tries the model first"
            ) from error
        if any(value.grad_fn is not history for value, _, history in self._tensors):
            raise error  # the autograd graph cannot be restored
        with torch.no_grad():
            for value, saved, _ in self._tensors:
                if not torch.equal(value.detach(), saved):
                    value.detach().copy_(saved)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
            torch.cuda.empty_cache()  # memory that the failed run had reserved


def device_is_lost() -> bool:
    """Whether the CUDA context is unusable, as after an illegal address."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
