"""The operations of a captured graph, as data that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.records.frame import Frame

INPUT = "input"  # the name of what is passed to the graph


@dataclass(frozen=True)
class Operation:
    """One operation of a graph, with the operations inside regions and checkpoints.

    `name` is the name of a function or method, or of an operator that calls a part of
    the graph. `inputs` are the positions of its operands in the graph. A size of
    `shape` is None if the compiler does not know it (it is unbacked).
    """

    name: str
    inputs: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()  # the constants among its arguments
    result: str = "tensor"  # tensor, float, int or other
    shape: tuple[int | None, ...] = ()
    device: str = ""
    needs_gradient: bool = False
    part: str = ""  # of an operator that calls a part of the graph: which part
    frames: tuple[Frame, ...] = ()
