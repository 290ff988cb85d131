"""The base classes of patterns, for nodes of compiled code and for whole files."""

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
    """A place where a pattern matches, with the texts of the finding."""

    node: ast.AST
    message: str
    cause: str
    fix: str
    severity: Severity | None = None  # None: the severity of the pattern


class Pattern:
    """A bad pattern inside compiled code. `nodes` are the node types to look at."""

    code: ClassVar[str]  # the code of the rule that explains it
    kind: ClassVar[str]  # the kind of the finding if a run confirms it
    nodes: ClassVar[tuple[type[ast.AST], ...]]
    severity: ClassVar[Severity] = "medium"
    shown_by: ClassVar[tuple[str, ...]] = ()  # codes that confirm it; empty: `code`
    calls: ClassVar[int] = 1  # the calls that a run needs to confirm it
    certain: ClassVar[bool] = False

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        raise AssertionError(f"{type(self).__name__} does not say what it looks for")


class FilePattern:
    """A bad pattern anywhere in a file: how the program compiles, captures, scripts.

    A `certain` pattern needs no run. Otherwise a run decides.
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
    """A match that would be a graph break. `{}` in a text is the source of the node."""
    text = shorten(at.text(node))
    message = f"`{text}` would cause a graph break in {at.function.name}"
    quoted = f"`{text}`"
    return PatternMatch(
        node=node,
        message=message,
        cause=cause.replace("{}", quoted),
        fix=fix.replace("{}", quoted),
        severity=severity,
    )
