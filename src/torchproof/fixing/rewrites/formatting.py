"""New code as text: brackets where they are needed, and lines that are not too long."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

import libcst as cst

WIDTH = 88


def wrapped(line: str, indent: int) -> str:
    """A statement, with the arguments of its call on lines of their own if needed."""
    if len(line) + indent <= WIDTH or "\n" in line:
        return f"{line}\n"
    statement = cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine)
    call, code = getattr(statement.body[0], "value", None), cst.Module(()).code_for_node
    call = call.right if isinstance(call, cst.BinaryOperation) else call
    if not isinstance(call, cst.Call):
        return f"{line}\n"
    plain = (each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in call.args)
    head = f"{line.removesuffix(code(call))}{code(call.func)}("
    return f"{laid_out(head, [code(each) for each in plain], WIDTH - indent)}\n"


def laid_out(head: str, parts: Sequence[str], width: int) -> str:
    """A bracket on one line, else its parts on the next line, else on a line each."""
    joined = ", ".join(parts)
    if "\n" not in joined and len(f"{head}{joined})") <= width:
        return f"{head}{joined})"
    is_short = "\n" not in joined and len(joined) + 4 <= width
    inner = joined if is_short else "".join(f"{part},\n" for part in parts).rstrip()
    return f"{head}\n{textwrap.indent(inner, ' ' * 4)}\n)"


def parenthesised(text: str) -> str:
    """The text as an operand: in parentheses unless it is one term."""
    text = text.strip()
    tree = ast.parse(f"({text})", mode="eval").body
    terms = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
    has_brackets = (tree.lineno, tree.col_offset) > (1, 1)
    return text if isinstance(tree, terms) or has_brackets else f"({text})"
