"""What every pattern is: it looks at a node of compiled code, or at a whole file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.source import Source
from torchproof.records import Severity


@dataclass(frozen=True)
class PatternMatch:
    """A pattern at a node, in words."""

    node: ast.AST
    message: str
    cause: str
    fix: str
    severity: Severity | None = None  # the pattern's, if it is not said here


class Pattern:
    """A bad pattern inside code that is compiled. `nodes` are what it looks at."""

    code: ClassVar[str]  # of the rule that explains it
    kind: ClassVar[str]  # what it is if a run shows it
    nodes: ClassVar[tuple[type[ast.AST], ...]]
    severity: ClassVar[Severity] = "medium"
    shown_by: ClassVar[tuple[str, ...]] = ()  # codes of a run that confirm it; its own
    calls: ClassVar[int] = 1  # that a run needs to show it
    certain: ClassVar[bool] = False

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        raise AssertionError(f"{type(self).__name__} does not say what it looks for")


class FilePattern:
    """A bad pattern anywhere in a file: how the program compiles, captures, scripts.

    What it sees stands without a run where it is `certain`; else a run decides.
    """

    code: ClassVar[str]
    kind: ClassVar[str] = "config"
    certain: ClassVar[bool] = True
    severity: ClassVar[Severity] = "medium"
    shown_by: ClassVar[tuple[str, ...]] = ()
    calls: ClassVar[int] = 1

    def read(self, source: Source) -> Iterator[PatternMatch]:
        raise AssertionError(f"{type(self).__name__} does not say what it looks for")


def shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def splits(
    node: ast.expr | ast.stmt,
    at: Flow,
    *,
    cause: str,
    fix: str,
    severity: Severity | None = None,
) -> PatternMatch:
    """What would be a graph break. `{}` in a text stands for the source's words."""
    text = shorten(at.text(node))
    message = f"`{text}` would split the graph of {at.function.name}"
    quoted = f"`{text}`"
    return PatternMatch(
        node, message, cause.replace("{}", quoted), fix.replace("{}", quoted), severity
    )
