"""Lists the patterns to search for: in compiled code, and in whole files."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from torchproof.checking.static.patterns import (
    devices,
    outputs,
    outside,
    sizes,
    state,
    tensors,
)
from torchproof.checking.static.patterns.files import FILE_PATTERNS
from torchproof.checking.static.patterns.pattern import (
    FilePattern,
    Pattern,
    PatternMatch,
)

__all__ = [
    "FILE_PATTERNS",
    "PATTERNS",
    "FilePattern",
    "Pattern",
    "PatternMatch",
    "by_node",
]

PATTERNS: tuple[Pattern, ...] = (
    tensors.ToPython(),
    tensors.Branch(),
    tensors.Comparison(),
    tensors.ToText(),
    sizes.DynamicSize(),
    sizes.SymbolicArgument(),
    sizes.UnrolledLoop(),
    outputs.Output(),
    outside.OutsideWorld(),
    outside.UntraceableCall(),
    outside.Recurrent(),
    outside.DeepCopy(),
    outside.Autograd(),
    outside.TensorInternals(),
    outside.DeviceContext(),
    outside.FrozenEnvironment(),
    outside.NumpyRandom(),
    devices.OnTheCpu(),
    state.Counter(),
    state.GlobalCounter(),
    state.GrowingList(),
    state.KeptOutput(),
    state.ListArgument(),
)


def by_node(patterns: Iterable[Pattern]) -> dict[type[ast.AST], list[Pattern]]:
    """The patterns for each type of node."""
    table: dict[type[ast.AST], list[Pattern]] = {}
    for pattern in patterns:
        for node in pattern.nodes:
            table.setdefault(node, []).append(pattern)
    return table
