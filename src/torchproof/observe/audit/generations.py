"""When CUDA graph trees reuse the memory of a compiled graph's outputs.

Graphs that run one after the other share a memory pool. Their outputs keep their memory
until their generation ends. A generation ends when a graph runs and

- the program has called `torch.compiler.cudagraph_mark_step_begin()` since the last
  run; or, in a program that never calls it, a compiled function has been called since
  then, and
- no backward is pending: a forward that needs gradients stays pending until any
  backward has run. A program that marks its steps ends the generation regardless.

Outputs that are still alive are then overwritten. Torch raises while it warms up and
records, and is silent when it replays. An output that shares memory with an input other
than an earlier output (a parameter, a buffer) does not belong to the graph. Neither do
the outputs of a graph that mutates such an input: it does not run as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class HasLifetime(Protocol):
    """An output in the memory of a graph; `alive` while a tensor uses the memory."""

    @property
    def alive(self) -> bool: ...


Output = TypeVar("Output", bound=HasLifetime)


class Generations(Generic[Output]):
    """The outputs of the current generation, and the rule for its end."""

    def __init__(self) -> None:
        self.path: list[Output] = []
        self._current: int | None = None
        self._awaits_backward = False

    def begin_run(self, number: int, *, marked: bool) -> list[Output]:
        """The live outputs whose memory a graph of generation `number` will reuse."""
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
        """Notes that a graph ran in this mode, whether or not as a CUDA graph."""
        if mode == "forward":
            self._awaits_backward = True
        elif mode == "backward":
            self._awaits_backward = False
