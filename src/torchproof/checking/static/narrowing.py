"""What a test says about names: in the branch where it holds, and in the other."""

from __future__ import annotations

import ast

from torchproof.checking.static import kinds
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.source import Source, walk

_ASKS = ("torch.is_tensor", "torch.overrides.is_tensor_like")


def narrowed(test: ast.expr, source: Source, *, holds: bool) -> dict[str, Kind]:
    """Names whose kind is another one where the test holds, or does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return narrowed(test.operand, source, holds=not holds)
    if isinstance(test, ast.BoolOp):
        narrowed_kinds: dict[str, Kind] = {}
        for operand in test.values:
            narrowed_kinds |= narrowed(operand, source, holds=holds)
        if holds is isinstance(test.op, ast.And):
            return narrowed_kinds
        return dict.fromkeys(narrowed_kinds, Kind.UNKNOWN)  # one of them, or another
    if not isinstance(test, ast.Call) or not test.args:
        return {}
    name, called = source.dotted(test.args[0]), source.dotted(test.func)
    if name is None:
        return {}
    if called in _ASKS:
        return {name: Kind.TENSOR if holds else Kind.UNKNOWN}
    if called != "isinstance" or len(test.args) != 2:
        return {}
    if holds:
        return {name: kinds.of_annotation(test.args[1])}
    return {name: Kind.UNKNOWN} if _names_tensor(test.args[1]) else {}


def _names_tensor(node: ast.expr) -> bool:
    return any("Tensor" in (_last_word(each) or "") for each in walk(node))


def _last_word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
