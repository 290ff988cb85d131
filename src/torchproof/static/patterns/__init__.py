"""The patterns that are looked for: in compiled code, and in whole files."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from torchproof.static.patterns import tensors
from torchproof.static.patterns._pattern import FilePattern, Pattern, Sighting

__all__ = ["FILE_PATTERNS", "PATTERNS", "FilePattern", "Pattern", "Sighting", "by_node"]

PATTERNS: tuple[Pattern, ...] = (
    tensors.ToPython(),
    tensors.Branch(),
    tensors.DynamicSize(),
)
FILE_PATTERNS: tuple[FilePattern, ...] = ()


def by_node(patterns: Iterable[Pattern]) -> dict[type[ast.AST], list[Pattern]]:
    """Which patterns look at which nodes."""
    found: dict[type[ast.AST], list[Pattern]] = {}
    for pattern in patterns:
        for node in pattern.nodes:
            found.setdefault(node, []).append(pattern)
    return found
