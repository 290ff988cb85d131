"""The watcher for CUDA graphs: which are skipped, split, recorded and replayed.

Listens to torch's CUDA graph trees while the target runs on CUDA. Writes entries to the
stream, which `events` turns into events and counts.
"""

from __future__ import annotations

import contextlib
import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchproof.observe.audit.stacks import site
from torchproof.records import (
    Frame,
    GraphSkipEvent,
    GraphSplitEvent,
    InputSize,
    RecordingEvent,
    frames_in,
)
from torchproof.targets import frame_of, plain
from torchproof.torch_private import (
    GraphRun,
    MovedInput,
    Skip,
    Split,
    compiled_graphs,
    cudagraph_recordings,
)

_FLUSH_S = 0.5
_MOST_SIZES = 64  # input sizes of one graph in an entry
_MOST_LOOKUPS = 8  # searches for the parameter names of tensors that moved
# Torch's reason why a recording does not fit the call, and our short name for it.
CAUSES = {
    "static input data pointer changed": "moved",
    "cudagraph managed tensor data pointer changed": "inputs",
    "expected dead indices before graph are live": "liveness",
}
OTHER_PATH = "path"  # no recording follows the graph that ran before
_QUOTE = re.compile(r"\.?\s*Found from\s*:?\s*")
_PREFIX = "skipping cudagraphs due to "


@dataclass
class GraphOutcome:
    """The runs of one compiled graph so far; `sizes` counts them by input size."""

    phase: str
    compile_id: str | None
    turns: Counter[str] = field(default_factory=Counter)
    sizes: dict[tuple[Any, ...], Counter[str]] = field(default_factory=dict)
    again: Counter[str] = field(default_factory=Counter)  # re-recordings by cause
    # Inputs that moved, by name, with the stack of their first use.
    uses: dict[str, tuple[Frame, ...]] = field(default_factory=dict)
    site: tuple[Frame, ...] = ()  # of the first recording
    since: int = 0  # runs since the last recording
    pool_bytes: int = 0  # how much the pool grew for it

    def add(self, graph_run: GraphRun) -> None:
        outcomes = self.sizes.setdefault((graph_run.sizes, graph_run.shapes), Counter())
        self.since = 0 if graph_run.how == "recorded" else self.since + 1
        if graph_run.how == "recorded" and outcomes["recorded"]:
            causes = [CAUSES.get(each, each) for each in graph_run.mismatches]
            self.again.update(causes[-1:] or [OTHER_PATH])
        outcomes[graph_run.how] += 1
        self.turns[graph_run.how] += 1

    def as_event(self) -> RecordingEvent:
        return RecordingEvent(
            compile_id=self.compile_id,
            site=self.site,
            phase=self.phase,
            turns=self.turns,
            sizes=tuple(
                InputSize(shapes, runs)
                for (_, shapes), runs in list(self.sizes.items())[:_MOST_SIZES]
            ),
            distinct=len(self.sizes),
            again=self.again,
            moved=tuple(self.uses),
            uses=self.uses,
            since=self.since,
            pool_bytes=self.pool_bytes,
        )


class Recordings:
    """Watches the CUDA graph trees; without CUDA it only writes that there are none."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._hooks = contextlib.ExitStack()
        self._graphs: dict[tuple[int, str], GraphOutcome] = {}
        self._pools: dict[tuple[int, int], int] = {}
        self._splits: set[Split] = set()
        self._call: int | None = None
        self._named = 0
        self._flushed = 0.0

    def __enter__(self) -> Recordings:
        self._write("cudagraphs_watched", cuda=torch.cuda.is_available())
        if torch.cuda.is_available():
            for hook in (
                cudagraph_recordings.without_graph_caches(),
                compiled_graphs.compiled_graphs(self._function),
                cudagraph_recordings.watched(self),
            ):
                self._hooks.enter_context(hook)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        self._flush()

    def before_call(self, index: int) -> None:
        self._call = index

    def after_call(self, index: int) -> None:
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        """Writes a snapshot of all graphs; the last one in the stream counts."""
        self._flushed = time.monotonic()
        if self._graphs:
            graphs = [each.as_event().to_json() for each in self._graphs.values()]
            self._write(
                "cudagraphs", graphs=graphs, pool_bytes=sum(self._pools.values())
            )

    # -- callbacks of the hooks ----------------------------------------------------

    def _function(self, graph: compiled_graphs.CompiledGraph) -> None:
        code = plain([frame_of(graph.code)])[0]
        self._write("cudagraph_function", compile_id=graph.compile_id, code=code)

    def skipped(self, skip: Skip) -> None:
        """Writes one event for each line that causes the skip, and at least one."""
        reason, quoted = explained(skip.reason)
        event = GraphSkipEvent(
            compile_id=skip.compile_id, call=self._call, site=site(), reason=reason
        )
        stacks = [frames_in(stack) for stack in skip.stacks] or [quoted]
        events = [replace(event, frames=frames).to_json() for frames in stacks]
        self._write("cudagraph_skip", events=events)

    def split(self, split: Split) -> None:
        if split not in self._splits:
            self._splits.add(split)
            event = GraphSplitEvent(
                compile_id=split.compile_id,
                frames=frames_in(split.stack or ""),
                call=self._call,
                reason=split.reason,
                operation=split.operation,
            )
            self._write("cudagraph_split", **event.to_json())

    def ran(self, graph_run: GraphRun) -> None:
        key = graph_run.graph, graph_run.phase
        graph = self._graphs.get(key)
        if graph is None:
            graph = GraphOutcome(graph_run.phase, graph_run.compile_id)
            self._graphs[key] = graph
        graph.add(graph_run)
        if graph_run.how == "recorded" and not graph.site:
            graph.site = site()
        if graph_run.pool is not None and graph_run.pool_bytes is not None:
            graph.pool_bytes += graph_run.pool_bytes - self._pools.get(
                graph_run.pool, 0
            )
            self._pools[graph_run.pool] = graph_run.pool_bytes
        if graph_run.moved:
            self._note_moved(graph, graph_run.moved)

    def _note_moved(self, graph: GraphOutcome, moved: Sequence[MovedInput]) -> None:
        self._named += 1
        names = _parameter_names(moved) if self._named <= _MOST_LOOKUPS else {}
        for each in moved:
            name = names.get(each.address, each.name)
            if name not in graph.uses:
                graph.uses[name] = frames_in(each.stack or "")


def _parameter_names(moved: Iterable[MovedInput]) -> dict[int, str]:
    """The names of parameters and buffers by address: class and path in the module."""
    addresses = {each.address for each in moved}
    modules = [
        each
        for each in gc.get_objects()
        if issubclass(
            type(each), torch.nn.Module
        )  # isinstance() runs code of the object
        and type(each).__name__ != "OptimizedModule"
    ]
    inner = {id(child) for module in modules for child in module.children()}
    names: dict[int, str] = {}
    for module in modules:
        if id(module) in inner:
            continue
        for tensors in (module.named_parameters(), module.named_buffers()):
            for name, tensor in tensors:
                if tensor.data_ptr() in addresses:
                    names[tensor.data_ptr()] = f"{type(module).__name__}.{name}"
    return names


def explained(reason: str) -> tuple[str, tuple[Frame, ...]]:
    """Torch's reason without its prefix, and the stack that it quotes."""
    while reason.startswith(_PREFIX):
        reason = reason.removeprefix(_PREFIX)
    message, *quoted = _QUOTE.split(reason, maxsplit=1)
    return " ".join(message.split()), frames_in("\n".join(quoted))
