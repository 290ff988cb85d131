"""A captured graph as plain data: what goes in, one line per operation, what comes out.

A line is Python source that names other lines and inputs, so a graph is cut, joined
and written out without torch.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["input", "weight", "buffer"]


@dataclass(frozen=True)
class Values:
    """How numbers like the recorded ones are made.

    `normal`: mean and spread. `positive`: any magnitude between low and high, and
    `negative` is its mirror. `whole`: from low to high. `choice`: one of a few.
    `fill`: one number.
    """

    kind: Literal["normal", "positive", "negative", "whole", "choice", "fill"]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class TensorFacts:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    requires_grad: bool = False
    values: Values | None = None  # None: it was never seen with numbers in it

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def is_contiguous(self) -> bool:
        return self.stride == contiguous(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Input:
    """One tensor that goes in, be it an argument or a weight.

    Inputs of the same `storage` share memory, each from its own `offset` on.
    """

    name: str
    facts: TensorFacts
    role: Role = "input"
    dynamic: tuple[int, ...] = ()  # dimensions that were symbols in the graph
    storage: str = ""
    offset: int = 0
    file: str = ""  # beside the candidate: real values


@dataclass(frozen=True)
class Line:
    """`name = expression`. `facts` of a tensor, `literal` of a number, else neither.

    `acts`: it does something besides giving a value, such as writing to a tensor.
    """

    name: str
    expression: str
    facts: TensorFacts | None = None
    literal: str = ""
    acts: bool = False

    @property
    def uses(self) -> tuple[str, ...]:
        return names(self.expression)


@dataclass(frozen=True)
class Function:
    """A graph inside the graph, such as a branch or a checkpointed part."""

    name: str
    parameters: tuple[str, ...]
    lines: tuple[Line, ...]
    result: str  # an expression
    decorator: str = ""


@dataclass(frozen=True)
class GraphIR:
    """One captured graph."""

    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]  # expressions
    functions: tuple[Function, ...] = ()
    calls: int = 1  # how often it is called in a row
    under: tuple[str, ...] = ()  # what it runs under, as decorators

    @property
    def size(self) -> int:
        """How many operations it has."""
        return len(self.lines) + sum(len(inner.lines) for inner in self.functions)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GraphIR:
        return cls(
            inputs=tuple(_input(entry) for entry in data["inputs"]),
            lines=tuple(_line(entry) for entry in data["lines"]),
            outputs=tuple(data["outputs"]),
            functions=tuple(_function(entry) for entry in data["functions"]),
            calls=data["calls"],
            under=tuple(data["under"]),
        )


def contiguous(shape: Iterable[int]) -> tuple[int, ...]:
    """The strides of a dense tensor, as torch counts them."""
    strides: list[int] = []
    step = 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def names(expression: str) -> tuple[str, ...]:
    """The names that an expression reads, each once."""
    tree = ast.parse(expression, mode="eval")
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(found))


def renamed(expression: str, other: Mapping[str, str]) -> str:
    """The expression with names replaced by the expressions given for them."""
    if not any(name in other for name in names(expression)):
        return expression
    return ast.unparse(_Renaming(other).visit(ast.parse(expression, mode="eval")))


class _Renaming(ast.NodeTransformer):
    def __init__(self, other: Mapping[str, str]) -> None:
        self._other = other

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._other:
            return node
        return ast.parse(self._other[node.id], mode="eval").body


def _facts(data: Mapping[str, Any] | None) -> TensorFacts | None:
    if data is None:
        return None
    values = data["values"]
    return TensorFacts(
        shape=tuple(data["shape"]),
        stride=tuple(data["stride"]),
        dtype=data["dtype"],
        device=data["device"],
        requires_grad=data["requires_grad"],
        values=values and Values(values["kind"], tuple(values["numbers"])),
    )


def _input(data: Mapping[str, Any]) -> Input:
    facts = _facts(data["facts"])
    assert facts is not None
    return Input(**{**data, "facts": facts, "dynamic": tuple(data["dynamic"])})


def _line(data: Mapping[str, Any]) -> Line:
    return Line(**{**data, "facts": _facts(data["facts"])})


def _function(data: Mapping[str, Any]) -> Function:
    lines = tuple(_line(entry) for entry in data["lines"])
    return Function(**{**data, "lines": lines, "parameters": tuple(data["parameters"])})
