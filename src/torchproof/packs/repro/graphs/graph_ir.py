"""The graph IR: a captured graph as plain data, with inputs, lines and outputs.

Each line is one operation, as Python source that names other lines and inputs. So a
graph can be cut, joined and written without torch.
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
    """A distribution from which numbers like the recorded ones can be drawn.

    `normal`: mean and standard deviation. `positive`: any magnitude between low and
    high; `negative` is its mirror image. `whole`: integers from low to high. `choice`:
    one of a few numbers. `fill`: one number.
    """

    kind: Literal["normal", "positive", "negative", "whole", "choice", "fill"]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class TensorFacts:
    """Shape, layout and distribution of a tensor, without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    requires_grad: bool = False
    values: Values | None = None  # None: only the tracer's fake tensor was seen

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
    """One tensor input: an argument, a weight or a buffer.

    Inputs of the same `storage` share memory; each starts at its own `offset`.
    """

    name: str
    facts: TensorFacts
    role: Role = "input"
    dynamic: tuple[int, ...] = ()  # dimensions with symbolic sizes
    storage: str = ""
    offset: int = 0
    file: str = ""  # the recorded tensor, in a file beside the candidate


@dataclass(frozen=True)
class Line:
    """`name = expression`, with the `facts` of a tensor or the `literal` of a number.

    `has_effect`: it does more than return a value, such as writing to a tensor.
    """

    name: str
    expression: str
    facts: TensorFacts | None = None
    literal: str = ""
    has_effect: bool = False

    @property
    def uses(self) -> tuple[str, ...]:
        return names(self.expression)


@dataclass(frozen=True)
class Function:
    """A subgraph, such as a branch or a checkpointed region."""

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
    calls: int = 1  # how many calls the candidate makes
    contexts: tuple[str, ...] = ()  # grad mode and autocast around it, as decorators

    @property
    def size(self) -> int:
        """The number of operations."""
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
            contexts=tuple(data["contexts"]),
        )


def contiguous(shape: Iterable[int]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def names(expression: str) -> tuple[str, ...]:
    """Returns the names that an expression reads, each once."""
    tree = ast.parse(expression, mode="eval")
    read = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(read))


def substitute(expression: str, values: Mapping[str, str]) -> str:
    """Replaces names in an expression by other expressions."""
    if not any(name in values for name in names(expression)):
        return expression
    return ast.unparse(_Substitution(values).visit(ast.parse(expression, mode="eval")))


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._values:
            return node
        return ast.parse(self._values[node.id], mode="eval").body


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
