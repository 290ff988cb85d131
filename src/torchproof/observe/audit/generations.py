"""When the memory of a compiled graph's outputs is gone: the rule of CUDA graph trees.

Graphs that run one after the other share a pool, and their outputs keep their memory
while the generation lasts that they belong to. A generation ends when a graph runs and

- the program has called `torch.compiler.cudagraph_mark_step_begin()` since the last
  run; or, in a program that never calls it, a compiled function has been entered since
  then, and
- no backward is awaited: a forward that will have one awaits it until any backward has
  run. Once a program marks its steps, this no longer holds a generation up.

What is alive then is overwritten: torch says so while it warms up and records, and says
nothing when it replays. Where everything is dead already nothing is lost. Outputs that
share memory with an input that is not an earlier output (a parameter, a buffer) are not
the graph's own, and neither are those of a graph that changes such an input in place
and so is not run as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class HasLifetime(Protocol):
    """Something with memory of a graph."""

    @property
    def alive(self) -> bool: ...


Output = TypeVar("Output", bound=HasLifetime)


class Generations(Generic[Output]):
    """The outputs of the generation that runs, and when it ends."""

    def __init__(self) -> None:
        self.path: list[Output] = []
        self._current: int | None = None
        self._awaits_backward = False

    def begin_run(self, number: int, *, marked: bool) -> list[Output]:
        """Before a graph runs in generation `number`: the outputs whose memory goes."""
        alive = [output for output in self.path if output.alive]
        if not alive:
            self.path = []
            return []
        if self._current == number or (self._awaits_backward and not marked):
            return []
        self.path = []
        return alive

    def end_run(self, number: int, mode: str, outputs: Iterable[Output]) -> None:
        self.path = [output for output in self.path if output.alive]
        self.path += outputs
        self._current = number
        self.ran(mode)

    def ran(self, mode: str) -> None:
        """A graph ran, if not as a CUDA graph: a backward is awaited no more."""
        if mode == "forward":
            self._awaits_backward = True
        elif mode == "backward":
            self._awaits_backward = False
