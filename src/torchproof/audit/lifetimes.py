"""Tensors that outlive the memory they live in: the watcher of part `lifetimes`.

Every output of a graph that runs as a CUDA graph, or would on a GPU, gets the lifetime
that `generations` gives it. Afterwards its memory is dead. On the CPU it is filled with
NaN; on CUDA the next graph writes to it. A use of dead memory is an entry `dead_read`;
what is held two generations on and not used is an entry `dead_held`.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchproof import torch_private
from torchproof.audit import stacks
from torchproof.audit.generations import Generations
from torchproof.audit.holders import Holder, holder_of, sharing
from torchproof.audit.stores import stored_at
from torchproof.introspect import plain
from torchproof.records import Frame
from torchproof.torch_private import trees
from torchproof.torch_private.trees import Graph, Memory

_SEARCHES = 3  # for holders of what one line produces


@dataclass
class Output:
    """One tensor that a graph returned."""

    memory: Memory
    dtype: Any
    role: str  # output or gradient
    producer: tuple[Frame, ...]
    function: Frame | None
    call: int | None
    run: int  # of the graph that returned it
    poisons: bool
    used: bool = False  # while its memory was its own
    died_in: int | None = None
    overwriter: tuple[Frame, ...] = ()
    told: str | None = None  # dead_held or dead_read

    @property
    def alive(self) -> bool:
        return self.memory.alive


class Lifetimes:
    """Follows outputs through generations, and sees who uses them afterwards."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._generations: Generations[Output] = Generations()
        self._dead: dict[int, Output] = {}
        self._graphs: set[Graph] = set()
        self._searches: Counter[tuple[Any, ...]] = Counter()
        self._number: int | None = None
        self._runs = 0
        self._call: int | None = None
        self._local = threading.local()
        self._busy = False  # this watcher looks at tensors itself
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Lifetimes:
        enter = self._hooks.enter_context
        enter(torch_private.compiled_contexts(lambda context: self._entered))
        enter(torch_private.frame_callbacks(_converted))
        enter(torch_private.graph_callables(self._dynamo_graph))
        enter(trees.graph_runs(self))
        enter(trees.Operations(self._operation, self._stands_for_cuda))
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()

    def before_call(self, index: int) -> None:
        self._call = index

    def after_call(self, index: int) -> None:
        self._call = None

    # -- calls of compiled functions -------------------------------------------------

    def _entered(self) -> Callable[[], None]:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        if depth == 0:
            self._local.site = stacks.user_stack()

        def leave() -> None:
            self._local.depth = depth
            if depth == 0:
                self._local.site = None

        return leave

    def _dynamo_graph(
        self, output_graph: Any, compiled: Callable[..., Any]
    ) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._used("a compiled graph", args, self._site())
            with trees.without_modes():
                return compiled(*args, **kwargs)

        return watched

    def _site(self) -> tuple[Frame, ...]:
        """The stack of the call that is running, from outside of compiled code."""
        site: tuple[Frame, ...] | None = getattr(self._local, "site", None)
        return stacks.user_stack() if site is None else site

    # -- runs of graphs --------------------------------------------------------------

    def begins(self, graph: Graph, inputs: Sequence[Any]) -> None:
        if graph.asks and graph not in self._graphs:
            self._graphs.add(graph)
            self._write("graph_asked", mode=graph.mode, simulated=graph.simulated)
        number, marked = trees.generation()
        path = {output.memory.key for output in self._generations.path}
        keys = [trees.memory_key(each) for each in inputs]
        owned = graph.asks and all(keys[i] in path for i in graph.changes)
        if owned:
            self._bury(self._generations.begin_run(number, marked=marked), number)
        what = "the backward" if graph.mode == "backward" else "a compiled graph"
        self._used(what, inputs, self._site())
        # Known as objects: else memory that is freed meanwhile could lend its address.
        self._local.run = owned and [
            Memory(each)
            for each, key in zip(inputs, keys, strict=True)
            if key is not None and key not in path
        ]

    def ends(self, graph: Graph, outputs: Any) -> None:
        foreign = self._local.run
        if foreign is False:
            self._generations.ran(graph.mode)
            return
        self._runs += 1
        known = {memory.key for memory in foreign}
        known |= {output.memory.key for output in self._generations.path}
        made: list[Output] = []
        site, function = self._site(), stacks.compiled_function()
        for tensor in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            key = trees.memory_key(tensor) if isinstance(tensor, torch.Tensor) else None
            if key is None or key in known or not tensor.numel():
                continue
            known.add(key)
            made.append(
                Output(
                    Memory(tensor),
                    tensor.dtype,
                    role="gradient" if graph.mode == "backward" else "output",
                    producer=site,
                    function=function,
                    call=self._call,
                    run=self._runs,
                    poisons=graph.simulated,
                )
            )
        self._generations.end_run(trees.generation()[0], graph.mode, made)

    def _bury(self, gone: Iterable[Output], number: int) -> None:
        if number != self._number:
            self._number = number
            self._dead = {k: v for k, v in self._dead.items() if v.alive}
            self._survivors(number)
        for output in gone:
            output.died_in, output.overwriter = number, self._site()
            self._dead[output.memory.key] = output
            if output.poisons:
                output.memory.poison(output.dtype)

    # -- uses of dead memory ---------------------------------------------------------

    def _operation(self, name: str, tensors: list[Any]) -> None:
        if self._busy or not (self._dead or self._generations.path):
            return
        keys = {trees.memory_key(tensor) for tensor in tensors}
        for output in self._generations.path:
            output.used |= output.memory.key in keys
        if not keys.isdisjoint(self._dead):
            self._used(name, tensors, stacks.user_stack())

    def _stands_for_cuda(self, tensor: Any) -> bool:
        key = trees.memory_key(tensor)
        return any(o.poisons and o.memory.key == key for o in self._generations.path)

    def _used(
        self, what: str, tensors: Iterable[Any], reader: tuple[Frame, ...]
    ) -> None:
        for tensor in tensors if self._dead else ():
            if not isinstance(tensor, torch.Tensor):
                continue
            output = self._dead.get(trees.memory_key(tensor) or 0)
            if output is None or output.told == "dead_read" or not output.alive:
                continue
            output.told = "dead_read"
            self._tell(output, "dead_read", reader=reader, operation=what)

    def _survivors(self, number: int) -> None:
        """Held through a whole generation after their own, by more than a variable.

        What was used in its time and is replaced by the next of its kind is not meant.
        """
        dead = self._dead.values()
        late = [each for each in dead if each.told is None and each.died_in != number]
        if late:
            gc.collect()  # what only a cycle keeps is held by nobody
        runs: dict[Any, set[int]] = {}
        for output in filter(_is_alive, self._dead.values()):
            runs.setdefault(output.producer[-1:], set()).add(output.run)
        for output in filter(_is_alive, late):
            if not output.used or len(runs[output.producer[-1:]]) > 1:
                self._tell(output, "dead_held")

    def _tell(self, output: Output, kind: str, **facts: Any) -> None:
        line = output.producer[-1:] or (output.function,)
        key = (kind, output.role, line)
        self._searches[key] += 1
        searched = self._searches[key] <= _SEARCHES
        holder = self._holder(output) if searched else None
        if kind == "dead_held":
            if holder is None or holder.is_plain_local:
                return
            output.told = kind
        stored = _stored(holder, output) if holder else None
        self._write(
            kind,
            role=output.role,
            producer=plain(output.producer),
            function=plain([output.function]) if output.function else [],
            overwriter=plain(output.overwriter),
            reader=plain(facts.get("reader", ())),
            operation=facts.get("operation"),
            holder=holder.path if holder else None,
            stored=plain([stored]) if stored else [],
            call=output.call,
        )

    def _holder(self, output: Output) -> Holder | None:
        self._busy = True
        try:
            return holder_of(sharing([output.memory.key])[output.memory.key])
        finally:
            self._busy = False


def _is_alive(output: Output) -> bool:
    return output.alive


def _stored(holder: Holder, output: Output) -> Frame | None:
    """Outside of compiled code as a rule; a module may also store in its forward."""
    inside = (output.function,) if output.function else ()
    files = [holder.function.co_filename] if holder.function else []
    return stored_at(holder.path, (*inside, *output.producer), files)


def _converted(convert: Callable[[], Any], asked: Any) -> Any:
    """Dynamo traces as if nobody watched."""
    with trees.without_modes():
        return convert()
