"""The watcher for tensors that are used or held after their memory was reused.

Every output of a graph that runs as a CUDA graph, or would on a GPU, has the lifetime
that `generations` defines. After that its memory is dead: on the CPU this watcher fills
it with NaN, on CUDA the next graph overwrites it. A use of dead memory is written as an
entry `dead_read`. An output that is still held two generations later without being used
is written as an entry `dead_held`.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torchproof import torch_private
from torchproof.observe.audit import stacks
from torchproof.observe.audit.generations import Generations
from torchproof.observe.audit.reporter import Output, Reporter
from torchproof.records import Frame
from torchproof.torch_private import (
    Graph,
    Memory,
    Operations,
    cudagraph_trees,
    without_modes,
)


class Lifetimes:
    """Follows outputs through generations and reports later uses."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._reporter = Reporter(write)
        self._generations: Generations[Output] = Generations()
        self._living: dict[int, Output] = {}  # outputs of the current generation
        self._dead: dict[int, Output] = {}
        self._graphs: set[Graph] = set()
        self._number: int | None = None
        self._runs = 0
        self._mark: tuple[Frame, ...] = ()  # where the program last marked a step
        self._call: int | None = None
        self._local = threading.local()
        self._off = False  # compiled graphs keep calling this watcher afterwards
        self._operations = Operations(self._operation, self._stands_for_cuda)
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Lifetimes:
        enter = self._hooks.enter_context
        enter(torch_private.compiled_contexts(lambda context: self._entered))
        enter(torch_private.frame_callbacks(self._converted))
        enter(torch_private.graph_callables(self._dynamo_graph))
        enter(cudagraph_trees.marks(self._marked))
        enter(cudagraph_trees.graph_runs(self))
        enter(self._operations)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        self._reporter.close()
        self._off = True

    def before_call(self, index: int) -> None:
        self._call = index

    def after_call(self, index: int) -> None:
        self._call = None

    def _marked(self) -> None:
        self._mark = stacks.user_stack()

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

    def _converted(self, convert: Callable[[], Any], request: Any) -> Any:
        """Hides the watcher's modes while Dynamo traces."""
        with self._operations.hidden():
            return convert()

    def _dynamo_graph(
        self, output_graph: Any, compiled: Callable[..., Any]
    ) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._used("a compiled graph", args, self._site())
            with without_modes():
                return compiled(*args, **kwargs)

        return watched

    def _site(self) -> tuple[Frame, ...]:
        """The stack at which the running call entered compiled code."""
        site: tuple[Frame, ...] | None = getattr(self._local, "site", None)
        return stacks.user_stack() if site is None else site

    # -- runs of graphs --------------------------------------------------------------

    def begins(self, graph: Graph, inputs: Sequence[Any]) -> None:
        self._local.run = None
        if self._off:
            return
        if graph.wants_cudagraph and graph not in self._graphs:
            self._graphs.add(graph)
            self._write("graph_asked", mode=graph.mode, simulated=graph.simulated)
        keys = [cudagraph_trees.memory_key(each) for each in inputs]
        path = {output.memory.key for output in self._generations.path}
        owns = graph.wants_cudagraph and all(keys[i] in path for i in graph.mutates)
        if owns:
            number, marked = cudagraph_trees.generation()
            expired = self._generations.begin_run(number, marked=marked)
            self._expire(expired, number, (marked and self._mark) or self._site())
        what = "the backward" if graph.mode == "backward" else "a compiled graph"
        self._used(what, inputs, self._site())
        if owns:
            # As objects: the address of memory freed meanwhile could be reused.
            self._local.run = [
                Memory(each)
                for each, key in zip(inputs, keys, strict=True)
                if key is not None and key not in path
            ]

    def ends(self, graph: Graph, outputs: Any) -> None:
        foreign: list[Memory] | None = self._local.run
        if foreign is None:
            if graph.wants_cudagraph and graph.mode == "backward":
                self.ran_backward()
            return
        self._runs += 1
        foreign_keys = {memory.key for memory in foreign}
        foreign_keys |= {output.memory.key for output in self._generations.path}
        tensors = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        new_outputs = list(self._new_outputs(graph, tensors, foreign_keys))
        self._generations.end_run(
            cudagraph_trees.generation()[0], graph.mode, new_outputs
        )
        self._living = {each.memory.key: each for each in self._generations.path}

    def ran_backward(self) -> None:
        self._generations.ran("backward")

    def _new_outputs(
        self, graph: Graph, tensors: Iterable[Any], foreign_keys: set[int]
    ) -> Iterable[Output]:
        site = self._site()
        function = stacks.compiled_function()
        for tensor in tensors:
            key = (
                cudagraph_trees.memory_key(tensor)
                if isinstance(tensor, torch.Tensor)
                else None
            )
            if key is None or key in foreign_keys or not tensor.numel():
                continue
            foreign_keys.add(key)
            yield Output(
                memory=Memory(tensor),
                dtype=tensor.dtype,
                role="gradient" if graph.mode == "backward" else "output",
                producer=site,
                function=function,
                call=self._call,
                run=self._runs,
                poisons=graph.simulated,
            )

    def _expire(
        self, outputs: Iterable[Output], number: int, begun_at: tuple[Frame, ...]
    ) -> None:
        """Marks outputs as dead: generation `number` reuses their memory."""
        if number != self._number:
            self._number = number
            self._dead = {k: v for k, v in self._dead.items() if v.alive}
            self._report_held(number)
        for output in outputs:
            output.died_in = number
            output.overwriter = begun_at
            self._dead[output.memory.key] = output
            if output.poisons:
                output.memory.poison(output.dtype)

    # -- uses of dead memory ---------------------------------------------------------

    def _operation(self, name: str, tensors: list[Any]) -> None:
        if self._reporter.searching or not (self._dead or self._living):
            return
        keys = {cudagraph_trees.memory_key(tensor) or 0 for tensor in tensors}
        for key in keys & self._living.keys():
            self._living[key].used = True
        if not keys.isdisjoint(self._dead):
            self._used(name, tensors, stacks.user_stack())

    def _stands_for_cuda(self, tensor: Any) -> bool:
        output = self._living.get(cudagraph_trees.memory_key(tensor) or 0)
        return output is not None and output.poisons

    def _used(
        self, what: str, tensors: Iterable[Any], reader: tuple[Frame, ...]
    ) -> None:
        for tensor in tensors if self._dead and not self._off else ():
            if not isinstance(tensor, torch.Tensor):
                continue
            output = self._dead.get(cudagraph_trees.memory_key(tensor) or 0)
            if output is not None and output.reported != "dead_read" and output.alive:
                self._reporter.read(output, reader, what)

    def _report_held(self, number: int) -> None:
        """Reports outputs that were held through a whole later generation.

        An output that was used in time and is replaced by the next run's is not
        reported.
        """
        late = [
            each
            for each in self._dead.values()
            if each.reported is None
            and each.died_in != number
            and self._reporter.can_search(each)
        ]
        if late:
            gc.collect()  # a tensor that only a cycle keeps alive is not held
        runs: dict[Any, set[int]] = {}
        for output in filter(_is_alive, self._dead.values()):
            runs.setdefault(output.line, set()).add(output.run)
        for output in filter(_is_alive, late):
            if not output.used or len(runs[output.line]) > 1:
                self._reporter.held(output)


def _is_alive(output: Output) -> bool:
    return output.alive
