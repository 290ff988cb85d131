"""Tensors that are expanded over the batch and then cross a graph break.

Over a batch of several rows the expanded dimension has stride 0, over a batch of one it
has another. Inside a graph nothing asks; what is compiled after a break takes it
as an input, and guards its strides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.patterns.pattern import Pattern, PatternMatch, shorten
from torchproof.checking.static.source import Function
from torchproof.checking.static.suspicion import Suspicion


@dataclass(frozen=True, eq=False)
class Expansion:
    """`name = x.expand(batch, ...)`, where the name is read, and who is given it."""

    node: ast.Assign
    text: str
    name: str
    function: Function
    reads: list[int] = field(default_factory=list)
    passed_to: list[Function] = field(default_factory=list)


class StrideFlip(Pattern):
    """An expanded tensor that crosses a graph break."""

    code, kind = "RC204", "recompile"
    nodes = ()
    severity = "low"
    shown_by = ("RC204",)
    calls = 3


class Expansions:
    """Collects while regions are walked; what became of each is known at the end."""

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
        """What a function that can be read is called with."""
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
                text = shorten(at.text(node.value))
                expansion = Expansion(node, text, target.id, at.function)
                self._open[at.function, target.id] = expansion
                self._every.append(expansion)

    def matches(
        self, suspicions: Iterable[Suspicion]
    ) -> Iterator[tuple[PatternMatch, Expansion]]:
        """Those that are read behind a place where the graph would be split."""
        splits: dict[tuple[str | None, str | None], list[int]] = {}
        for each in suspicions:
            if each.finding.suspects == "graph_break":
                place = each.finding.file, each.finding.function
                splits.setdefault(place, []).append(each.finding.line or 0)
        for expansion in self._every:
            last = max(expansion.reads, default=0)
            after = _splits(expansion.function, splits)
            crosses = any(expansion.node.lineno < line < last for line in after)
            if crosses or any(_splits(f, splits) for f in expansion.passed_to):
                yield _match(expansion), expansion


def _splits(
    function: Function, splits: dict[tuple[str | None, str | None], list[int]]
) -> list[int]:
    return splits.get((str(function.source.path), function.name), [])


def _expands(value: ast.expr, at: Flow) -> bool:
    """`x.expand(batch, ...)` with a length first, on what is a tensor."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    if value.func.attr != "expand" or not value.args:
        return False
    # `2 * batch` is never 1, nor are most other results of arithmetic.
    plain = isinstance(value.args[0], ast.Name | ast.Subscript | ast.Call)
    tensor = at.kind(value.func.value).is_tensor
    return plain and tensor and at.kind(value.args[0]) is Kind.LENGTH


def _match(expansion: Expansion) -> PatternMatch:
    return PatternMatch(
        expansion.node,
        f"`{expansion.text}` has other strides where the batch is 1, and a part of"
        f" {expansion.function.name} would be compiled again for them",
        "the expanded dimension has stride 0 over several rows and another over one;"
        " the tensor crosses a graph break, and what is compiled behind it guards its"
        " strides",
        "cure the graph break; or make the rows real: .expand(...).contiguous(), or"
        f" repeat, or leave `{expansion.name}` without a batch and let it broadcast",
    )
