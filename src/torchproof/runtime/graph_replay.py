"""Replays whole calls of a model from CUDA graphs, if its recipe asks for that.

A `GraphReplayer` takes the place of compiled code. It replays a call without gradients
of a model in eval mode; any other call runs the same strategy without a graph.
Recording has the same deadline as compiling. A call that cannot be recorded runs
without a graph, and `status` has the reason.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchproof.process import forks
from torchproof.records import JsonObject
from torchproof.runtime import backend, compile_job
from torchproof.runtime.method_replacement import Options
from torchproof.strategies import Strategy
from torchproof.torch_private import frames

if TYPE_CHECKING:
    from torchproof.runtime.cudagraph.graphed_step import Graphed

Call = Callable[..., Any]
_NOT_REPLAYED = (
    "calls with gradients enabled, or of a model in training mode, run without the CUDA"
    " graph: call the model after model.eval() and under torch.no_grad()"
)


class GraphReplayer:
    """Replays calls; `inner` runs a call by the same strategy without a graph."""

    def __init__(
        self,
        owner: nn.Module | None,
        make: Callable[[Call], Graphed],  # takes what runs unrecorded calls
        inner: Call,
        note: Callable[[str], None],
    ) -> None:
        self._owner = owner
        self._make = make
        self._note = note
        self.inner = inner
        self._lock = forks.lock()
        self.graphed: Graphed | None = None
        self.unrecorded_calls = 0  # of the graphed step, that `inner` has run
        self._failed = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        owner = self._owner
        if torch.is_grad_enabled() or (owner is not None and owner.training):
            self._note(_NOT_REPLAYED)
            return self.inner(*args, **kwargs)
        replay = self.graphed or self._make_graphed()
        return replay(*args, **kwargs)

    def _make_graphed(self) -> Call:
        """The graphed step, or `inner` if it cannot be made."""
        with self._lock:
            if self.graphed is None and not self._failed:
                try:
                    self.graphed = self._make(self._run_unrecorded)
                except Exception as error:
                    self._failed = True
                    self._note(f"no CUDA graph is used: {backend.one_line(error)}")
            return self.graphed or self.inner

    def _run_unrecorded(self, /, *args: Any, **kwargs: Any) -> Any:
        self.unrecorded_calls += 1
        return self.inner(*args, **kwargs)

    @property
    def is_compiled(self) -> bool:
        """Whether there are recordings, and none waits for its code."""
        return self.graphed is not None and self.graphed.is_compiled

    def status(self) -> JsonObject | None:
        if self.graphed is None:
            return None
        status = self.graphed.status()
        return status.to_json() | {"summary": str(status).splitlines()}


def graphed(
    step: Call, strategy: Strategy, options: Options, unrecorded: Call
) -> Graphed:
    """The model's forward, compiled by the strategy and recorded as a CUDA graph.

    With `wait=False`, the uncompiled forward is recorded first, and answers until the
    code of the strategy is ready; `unrecorded` runs the calls that are not recorded.
    """
    from torchproof.runtime.cudagraph import build_graph, graphed_step, snapshots

    chosen = snapshots.Options(
        strategy,
        within=functools.partial(_within_deadline, options.deadline_s),
        deadline_s=options.deadline_s,
    )
    if not options.wait:
        chosen = build_graph.compiled_later(chosen)
    if chosen.later:
        chosen = replace(chosen, unrecorded=unrecorded)
    return graphed_step.Graphed(step, chosen)


@contextlib.contextmanager
def _within_deadline(deadline_s: float) -> Iterator[None]:
    """Refuses a recording that takes longer than the deadline, compiling included.

    Tracing stops at the deadline; what else takes too long is refused at its end.
    """
    from torchproof.runtime.cudagraph.graph_status import Stop, Stopped

    job = compile_job.Job(until=time.monotonic() + deadline_s)
    try:
        with frames.checkpoints(job.check):
            yield
        job.check()
    except (Exception, compile_job.DeadlinePassed) as error:
        if time.monotonic() < job.until:
            raise
        phase = getattr(error, "phase", None)
        where = f", in {phase}" if phase else ""
        why = f"recording took longer than the deadline of {deadline_s:g} s{where}"
        raise Stopped(Stop("capture", why, "compiling")) from None
