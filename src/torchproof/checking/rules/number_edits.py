"""Edits that keep a number from being a constant of the graph: a tensor, select."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torchproof.checking.rules.rule import PROSE, shorten
from torchproof.checking.static import bindings, changes
from torchproof.checking.static.attribute_facts import AttributeFacts, FirstValue, Reset
from torchproof.checking.static.source import Definition, Source
from torchproof.records import (
    Frame,
    Guard,
    Remedy,
    Replacement,
    Setting,
    cells,
    shown_briefly,
    whose,
)


def as_tensor(
    name: str, facts: AttributeFacts, observed: str | None, *, in_module: bool
) -> Remedy | None:
    """A tensor where __init__ sets the number, written in place where others set it.

    `observed` is a value that a guard saw: only its type counts.
    """
    first = facts.first
    if first is None or not first.in_method or facts.python_use is not None:
        return None
    is_module = in_module or first.in_module
    if not changes.imports_torch(first.file) or (is_module and not first.after_init):
        return None
    if any(reset.target != f"self.{name}" for reset in facts.resets):
        return None  # the same attribute of an object that may be another one
    is_exact = first.kind is float or (first.kind is None and _is_float(observed))
    line = f"self.{name} = {_tensor(first.value, is_exact)}"
    if is_module:
        value = _tensor(first.value, is_exact)
        line = f'self.register_buffer("{name}", {value}, persistent=False)'
    fills = [_instead_of(r, f"{r.target}.fill_({r.value})") for r in facts.resets]
    edits = [_instead_of(first, line), *fills]
    if not all(edits):
        return None
    at = cells.place(shown_briefly(first.file), first.line)
    also = " and .fill_() where it is reset" if fills else ""
    titles = (
        f"write `{line}` instead of `{first.statement}` at {at}{also}",
        f"write `{line}` at {at}{also}",
        f"keep `self.{name}` in a tensor from {at} on{also}",
    )
    return Remedy(
        "edit",
        replacements=tuple(r for edit in edits if edit for r in edit.replacements),
        title=next((t for t in titles if len(t) <= PROSE), titles[-1]),
    )


def _instead_of(found: FirstValue | Reset, code: str) -> Remedy | None:
    """Code in place of a statement that has its lines for itself."""
    source = changes.source_of(found.file)
    node = changes.statement_at(source, found.line) if source else None
    if source is None or node is None or ast.unparse(node) != found.statement:
        return None
    return changes.edit("", source, {node: code})


def before_first_call(guard: Guard, facts: AttributeFacts) -> str | None:
    """The statement that makes the number of an object a tensor."""
    if guard.source.startswith("self.") or not facts.is_plain:
        return None
    return f"{guard.source} = {_tensor(guard.source, _is_float(guard.expected))}"


def _tensor(value: str, is_float: bool) -> str:
    return f"torch.tensor({value}{', dtype=torch.float64' if is_float else ''})"


def _is_float(text: str | None) -> bool:
    """Whether the text of a number is that of a float."""
    return any(mark in (text or "") for mark in (".", "e", "inf", "nan"))


# -- a number as an index --------------------------------------------------------------


class _Row(NamedTuple):
    """A tensor indexed by a number and slices, and the same row by `select`."""

    node: ast.Subscript
    position: ast.expr
    text: str


def selecting(name: str, frames: Sequence[Frame], frame: Frame) -> Remedy | None:
    """`x.select(1, name)` instead of `x[:, name]` at a line, and in its function.

    Both are the same view, but Dynamo makes an int between slices a constant, and so it
    does with a tensor of one number. The first of the frames knows the name.
    """
    source = changes.source_of(frame.file)
    own = [each for each in frames if whose(each.file) == "user"]
    for caller, callee in itertools.pairwise(own):
        name = _parameter(name, caller, callee) or name
    if source is None:
        return None
    rows = [row for node in source.of(ast.Subscript) if (row := _row(source, node))]
    rows = [row for row in rows if _is_computed(row.position, name)]
    first = next((row for row in rows if row.node.lineno == frame.line), None)
    if first is None:
        return None
    scope = bindings.of(source).scope
    same = [row for row in rows if scope(row.node) is scope(first.node)]
    old = changes.code(source, first.node)
    title = f"write `{first.text}` instead of `{old}`: select takes an int as an input"
    new: dict[changes.Node, str] = {row.node: row.text for row in same}
    return changes.edit(shorten(title, PROSE), source, new)


def _parameter(name: str, caller: Frame, callee: Frame) -> str | None:
    """The parameter that gets a value in the call from one frame to the next."""
    source, other = changes.source_of(caller.file), changes.source_of(callee.file)
    function = _around(other, callee.line) if other else None
    if source is None or function is None:
        return None
    parameters = [each.arg for each in function.args.args]
    for call in source.of(ast.Call):
        given = [ast.unparse(each) for each in call.args]
        if call.lineno == caller.line and name in given:
            at = given.index(name) + (parameters[:1] == ["self"])
            return parameters[at] if at < len(parameters) else None
        named = [k.arg for k in call.keywords if ast.unparse(k.value) == name]
        if call.lineno == caller.line and named:
            return named[0]
    return None


def _around(source: Source, line: int) -> Definition | None:
    """The innermost function at a line."""
    nodes = source.of(ast.FunctionDef, ast.AsyncFunctionDef)
    inside = [n for n in nodes if n.lineno <= line <= (n.end_lineno or n.lineno)]
    return max(inside, key=lambda node: node.lineno, default=None)


def _row(source: Source, node: ast.Subscript) -> _Row | None:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    kinds = [_kind(part) for part in parts]
    if kinds.count("index") != 1 or "other" in kinds or isinstance(node.ctx, ast.Del):
        return None
    if not isinstance(node.value, ast.Name | ast.Attribute):
        return None
    if source.own(node.value) is None and "numpy" in source.names.values():
        return None  # it may be an array
    at = kinds.index("index")
    others = [changes.code(source, each) for each in parts if each is not parts[at]]
    dim = at - len(parts) if "..." in others[:at] else at
    row = changes.code(source, node.value)
    row += f".select({dim}, {changes.code(source, parts[at])})"
    if set(others) - {":", "..."}:
        row += f"[{', '.join(others)}]"
    elif isinstance(node.ctx, ast.Store):
        row += "[...]"
    return _Row(node, parts[at], row)


def _kind(part: ast.expr) -> str:
    """What a part of an index is: a slice or a constant, what may vary, or another."""
    if isinstance(part, ast.UnaryOp):
        part = part.operand
    if isinstance(part, ast.Constant):
        return "fixed" if part.value is ... or type(part.value) is int else "other"
    if isinstance(part, ast.Name | ast.Attribute | ast.BinOp):
        return "index"
    return "fixed" if isinstance(part, ast.Slice) else "other"


def _is_computed(index: ast.expr, name: str) -> bool:
    """Whether an index is a number of this name, with constants added or the like."""
    if isinstance(index, ast.BinOp):
        parts = [index.left, index.right]
        known = any(isinstance(each, ast.Constant) for each in parts)
        return known and any(_is_computed(each, name) for each in parts)
    return ast.unparse(index) == name


def with_setting(remedy: Remedy, setting: Setting | None) -> Remedy | None:
    """An edit that also writes a setting, above the definition that it changes."""
    if setting is None:
        return remedy
    change = remedy.replacements[0]
    source = changes.source_of(change.file)
    if source is None or not changes.imports_torch(change.file):
        return None
    lines = [changes.first_line(node) for node in source.tree.body]
    place = max(line for line in lines if line <= change.line)
    rows = tuple(f"{row}\n" for row in (*setting.lines, "", ""))
    added = Replacement(change.file, place, (), rows)
    return replace(remedy, replacements=(added, *remedy.replacements))
