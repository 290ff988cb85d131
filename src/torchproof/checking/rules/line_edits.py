"""Edits of whole lines of the user's files that a rule knows without trying them.

None where an edit would be incomplete: a statement of several lines, two statements on
a line, a name that has no value yet.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from torchproof.checking.static.line_facts import WrittenMark
from torchproof.records import Call, Replacement, blame, tree_of

_SIMPLE = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return
_SCOPES = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def instead_of(file: str, line: int, statement: str, code: str) -> Replacement | None:
    """Code in place of a statement that has a line of its own."""
    node = _statement(file, line)
    if node is None or ast.unparse(node) != statement:
        return None
    return _replaced(file, node, (code,))


def before_call(call: Call, code: Sequence[str]) -> Replacement | None:
    """Lines before the statement that makes a call, which has arguments with names."""
    node = _statement(call.file, call.line)
    if not isinstance(node, _SIMPLE) or not imports_torch(call.file):
        return None
    if any(isinstance(n, ast.NamedExpr | _SCOPES) for n in ast.walk(node)):
        return None  # what is marked may get its value in the statement
    text = blame.lines_of(call.file)[node.lineno - 1]
    indent = _indent(text)
    return Replacement(
        call.file, node.lineno, (text,), (*(f"{indent}{c}\n" for c in code), text)
    )


def without(mark: WrittenMark) -> Replacement | None:
    """The file without a statement that marks one size."""
    node = _statement(mark.file, mark.line)
    if node is None or len(mark.dimensions) > 1:
        return None
    if not isinstance(node, ast.Expr) or ast.unparse(node.value) != mark.code:
        return None
    return _replaced(mark.file, node, ("pass",) if _is_alone(mark.file, node) else ())


def imports_torch(file: str) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any((each.asname or each.name) == "torch" for each in node.names)
        for node in tree_of(file).body
    )


def _statement(file: str, line: int) -> ast.stmt | None:
    """The innermost statement at a line, if no other one is on its lines."""
    statements = [n for n in ast.walk(tree_of(file)) if isinstance(n, ast.stmt)]
    inside = [n for n in statements if n.lineno <= line <= (n.end_lineno or n.lineno)]
    node = max(inside, key=lambda n: n.lineno, default=None)
    lines = blame.lines_of(file)
    if node is None or len(lines) < (node.end_lineno or node.lineno):
        return None
    before = lines[node.lineno - 1].encode()[: node.col_offset]
    after = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset :]
    is_whole = not before.strip() and after.strip()[:1] in (b"", b"#")
    return node if is_whole else None


def _replaced(file: str, node: ast.stmt, code: Iterable[str]) -> Replacement | None:
    if node.end_lineno != node.lineno:
        return None
    text = blame.lines_of(file)[node.lineno - 1]
    rest = text.encode()[node.end_col_offset :].decode()
    new = tuple(f"{_indent(text)}{each}{rest}" for each in code)
    return Replacement(file, node.lineno, (text,), new)


def _is_alone(file: str, node: ast.stmt) -> bool:
    """Whether a block would be empty without a statement."""
    blocks = (
        block
        for parent in ast.walk(tree_of(file))
        for block in vars(parent).values()
        if isinstance(block, list) and block == [node]
    )
    return next(blocks, None) is not None


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
