"""Whole calls of a model replayed from CUDA graphs, where its recipe says so.

Stands where compiled code would: a call without gradients, of a model in eval mode, is
replayed. Any other runs as the same strategy runs without a graph. Recordings are made
within the deadline, and what cannot be recorded runs as it is, with the reason told.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchproof.process import forks
from torchproof.runtime import backend, compile_job, interruptible_thread
from torchproof.strategies import Strategy

if TYPE_CHECKING:
    from torchproof.runtime.cudagraph.graphed_step import Graphed

Call = Callable[..., Any]
_NOT_REPLAYED = (
    "calls that record gradients, or of a model in training, run without its graph:"
    " call it after model.eval() and under torch.no_grad()"
)


class GraphReplayer:
    """`inner` runs one call by the strategy without a graph, from its first call on."""

    def __init__(
        self,
        owner: nn.Module | None,
        make: Callable[[], Graphed],
        inner: Call,
        note: Callable[[str], None],
    ) -> None:
        self._owner, self._make, self._note = owner, make, note
        self.inner = inner
        self._making = forks.lock()
        self.graphed: Graphed | None = None
        self._failed = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        owner = self._owner
        if torch.is_grad_enabled() or (owner is not None and owner.training):
            self._note(_NOT_REPLAYED)
            return self.inner(*args, **kwargs)
        replay = self.graphed or self._made()
        return replay(*args, **kwargs)

    def _made(self) -> Call:
        """The graphed step, or what runs without one where none can be made."""
        with self._making:
            if self.graphed is None and not self._failed:
                try:
                    self.graphed = self._make()
                except Exception as error:
                    self._failed = True
                    self._note(f"nothing is replayed: {backend.one_line(error)}")
            return self.graphed or self.inner

    def status(self) -> dict[str, Any] | None:
        if self.graphed is None:
            return None
        found = self.graphed.status()
        return found.to_json() | {"summary": str(found).splitlines()}


def graphed(step: Call, strategy: Strategy, deadline_s: float) -> Graphed:
    """The model's own forward, compiled as the strategy says and recorded."""
    from torchproof.runtime.cudagraph import build_graph

    return build_graph.graphed(
        step,
        train=False,
        strategy=strategy,
        pool=None,
        buffers=False,
        padder=None,
        within=functools.partial(_in_time, deadline_s),
    )


@contextlib.contextmanager
def _in_time(deadline_s: float) -> Iterator[None]:
    """A recording that takes too long, compiling included, is refused."""
    from torchproof.runtime.cudagraph.graph_status import Stop, Stopped

    job = compile_job.Job(until=time.monotonic() + deadline_s)
    late = functools.partial(backend.end_compilers, job)
    try:
        with interruptible_thread.interrupt_after(job.until, late):
            yield
    except interruptible_thread.Interrupted:
        phase = f", in {job.phase}" if job.phase else ""
        told = f"recording took longer than the deadline of {deadline_s:g} s{phase}"
        raise Stopped(Stop("capture", told, "compiling")) from None
