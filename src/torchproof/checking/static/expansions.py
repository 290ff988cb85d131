"""Finds tensors that are expanded over the batch and then cross a graph break.

The expanded dimension has stride 0 for a batch of several rows, and another stride for
a batch of one. Inside a graph this does not matter. After a graph break, the next graph
takes the tensor as an input and guards its strides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.source import Function, Source
from torchproof.records import Finding


@dataclass(frozen=True, eq=False)
class Expansion:
    """`name = x.expand(batch, ...)`, the lines that read it, and where it is passed."""

    node: ast.Assign
    text: str
    name: str
    function: Function
    reads: list[int] = field(default_factory=list)
    passed_to: list[Function] = field(default_factory=list)

    @property
    def place(self) -> tuple[Source, str]:
        return self.function.source, self.function.name


class Expansions:
    """Collects expansions during the walk; `crossing` lists them at the end."""

    def __init__(self) -> None:
        self._open: dict[tuple[Function, str], Expansion] = {}
        self._every: list[Expansion] = []

    def look(self, node: ast.AST, at: Flow) -> None:
        if isinstance(node, ast.Assign):
            self._assigned(node, at)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            expansion = self._open.get((at.function, node.id))
            if expansion is not None:
                expansion.reads.append(node.lineno)

    def passed(self, call: ast.Call, callee: Function, at: Flow) -> None:
        """Notes which expanded tensors a call passes to a function in the sources."""
        for argument in (*call.args, *(k.value for k in call.keywords)):
            if isinstance(argument, ast.Name):
                expansion = self._open.get((at.function, argument.id))
                if expansion is not None:
                    expansion.passed_to.append(callee)

    def _assigned(self, node: ast.Assign, at: Flow) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                continue
            self._open.pop((at.function, target.id), None)
            if _expands(node.value, at):
                text = at.source.brief(node.value)
                expansion = Expansion(node, text, target.id, at.function)
                self._open[at.function, target.id] = expansion
                self._every.append(expansion)

    def crossing(self, breaks: Iterable[Finding]) -> Iterator[Expansion]:
        """The expansions that are read after a suspected graph break."""
        splits: dict[tuple[str | None, str | None], list[int]] = {}
        for each in breaks:
            splits.setdefault((each.file, each.function), []).append(each.line or 0)
        for expansion in self._every:
            last = max(expansion.reads, default=0)
            after = _splits(expansion.function, splits)
            crosses = any(expansion.node.lineno < line < last for line in after)
            if crosses or any(_splits(f, splits) for f in expansion.passed_to):
                yield expansion


def _splits(
    function: Function, splits: dict[tuple[str | None, str | None], list[int]]
) -> list[int]:
    return splits.get((str(function.source.path), function.name), [])


def _expands(value: ast.expr, at: Flow) -> bool:
    """Whether a value is `x.expand(batch, ...)` of a tensor, with a size first."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    if value.func.attr != "expand" or not value.args:
        return False
    # `2 * batch` is never 1, and neither are most other results of arithmetic.
    plain = isinstance(value.args[0], ast.Name | ast.Subscript | ast.Call)
    tensor = at.kind(value.func.value).is_tensor
    return plain and tensor and at.kind(value.args[0]) is Kind.LENGTH
