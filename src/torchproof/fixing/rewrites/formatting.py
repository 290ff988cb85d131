"""New statements as text that fits into a line, or is broken like the rest."""

from __future__ import annotations

import ast

_WIDTH = 88


def wrapped(line: str, indent: int) -> str:
    """A statement, with the arguments of its call on lines of their own if needed."""
    if len(line) + indent <= _WIDTH or "\n" in line:
        return f"{line}\n"
    tree = ast.parse(line.replace("return ", "return_ = ", 1)).body[0]
    value = getattr(tree, "value", None)
    if not isinstance(value, ast.Call):
        return f"{line}\n"
    shift = len("return_ = ") - len("return ") if line.startswith("return ") else 0
    parts = [
        line[each.col_offset - shift : (each.end_col_offset or 0) - shift]
        for each in value.args
    ]
    head = line[: value.args[0].col_offset - shift]
    joined = ", ".join(parts)
    if len(joined) + indent + 4 <= _WIDTH:
        return f"{head}\n    {joined}\n)\n"
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{head}\n{inner})\n"
