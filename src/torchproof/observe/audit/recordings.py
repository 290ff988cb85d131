"""What becomes of the CUDA graphs a program asks for: a watcher of the audit.

Comes in: what torch's graph trees do while the target runs on CUDA. Goes out: entries
of the stream, which `outcomes` turns into events and counts.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchproof.observe.audit.sites import site
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
_TOLD_SIZES = 64  # of one graph, in an entry
_NAMED_MOVES = 8  # times the tensors that moved are looked up by name
# torch's words for why a recording does not fit, and ours.
CAUSES = {
    "static input data pointer changed": "moved",
    "cudagraph managed tensor data pointer changed": "inputs",
    "expected dead indices before graph are live": "liveness",
}
OTHER_PATH = "path"  # nothing was recorded after what ran before it


@dataclass
class GraphOutcome:
    """What happened to one compiled graph so far; `sizes` are runs by input size."""

    number: int
    phase: str
    compile_id: str | None
    turns: Counter[str] = field(default_factory=Counter)
    sizes: dict[tuple[Any, ...], Counter[str]] = field(default_factory=dict)
    again: Counter[str] = field(default_factory=Counter)  # recordings by cause
    moved: Counter[str] = field(default_factory=Counter)
    site: list[list[Any]] = field(default_factory=list)  # of the first recording
    since: int = 0  # runs since the last recording
    pool_bytes: int = 0  # by which the pool grew for it

    def add(self, turn: GraphRun) -> None:
        outcomes = self.sizes.setdefault((turn.sizes, turn.shapes), Counter())
        self.since = 0 if turn.how == "recorded" else self.since + 1
        if turn.how == "recorded" and outcomes["recorded"]:
            causes = [CAUSES.get(each, each) for each in turn.mismatches]
            self.again.update(causes[-1:] or [OTHER_PATH])
        outcomes[turn.how] += 1
        self.turns[turn.how] += 1

    def told(self) -> dict[str, Any]:
        sizes = [
            [list(map(list, shapes)), dict(runs)]
            for (_, shapes), runs in list(self.sizes.items())[:_TOLD_SIZES]
        ]
        return {
            "number": self.number,
            "phase": self.phase,
            "compile_id": self.compile_id,
            "turns": dict(self.turns),
            "sizes": sizes,
            "distinct": len(self.sizes),
            "again": dict(self.again),
            "moved": dict(self.moved),
            "site": self.site,
            "since": self.since,
            "pool_bytes": self.pool_bytes,
        }


class Recordings:
    """Watches the graph trees; without CUDA there are none, and it says so."""

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
        """A snapshot of all graphs; the last one in the stream holds."""
        self._flushed = time.monotonic()
        if self._graphs:
            graphs = [graph.told() for graph in self._graphs.values()]
            self._write(
                "cudagraphs", graphs=graphs, pool_bytes=sum(self._pools.values())
            )

    # -- what the hooks tell -------------------------------------------------------

    def _function(self, graph: compiled_graphs.CompiledGraph) -> None:
        code = plain([frame_of(graph.code)])[0]
        self._write("cudagraph_function", compile_id=graph.compile_id, code=code)

    def skipped(self, skip: Skip) -> None:
        self._write(
            "cudagraph_skip",
            reason=skip.reason,
            compile_id=skip.compile_id,
            stacks=skip.stacks,
            site=plain(site()),
            call=self._call,
        )

    def split(self, split: Split) -> None:
        if split not in self._splits:
            self._splits.add(split)
            self._write("cudagraph_split", **vars(split), call=self._call)

    def ran(self, turn: GraphRun) -> None:
        key = turn.graph, turn.phase
        graph = self._graphs.get(key)
        if graph is None:
            number = len(self._graphs)
            graph = GraphOutcome(number, turn.phase, turn.compile_id)
            self._graphs[key] = graph
        graph.add(turn)
        if turn.how == "recorded" and not graph.site:
            graph.site = plain(site())
        if turn.pool is not None and turn.pool_bytes is not None:
            graph.pool_bytes += turn.pool_bytes - self._pools.get(turn.pool, 0)
            self._pools[turn.pool] = turn.pool_bytes
        if turn.moved:
            self._note_moved(graph, turn.moved)

    def _note_moved(self, graph: GraphOutcome, moved: Sequence[MovedInput]) -> None:
        self._named += 1
        names = _parameter_names(moved) if self._named <= _NAMED_MOVES else {}
        for each in moved:
            name = names.get(each.address, each.name)
            graph.moved[name] += 1
            if graph.moved[name] == 1:
                self._write(
                    "cudagraph_moved",
                    number=graph.number,
                    name=name,
                    stack=each.stack,
                    call=self._call,
                )


def _parameter_names(moved: Iterable[MovedInput]) -> dict[int, str]:
    """Addresses of parameters and buffers, by the path in the module they belong to."""
    addresses = {each.address for each in moved}
    modules = [
        each
        for each in gc.get_objects()
        if issubclass(type(each), torch.nn.Module)  # isinstance() asks the object
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
