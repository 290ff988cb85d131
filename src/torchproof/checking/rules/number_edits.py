"""The edit that keeps a number in an index from being a constant: select."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from torchproof.checking.rules.rule import PROSE, shorten
from torchproof.checking.static import changes
from torchproof.checking.static.program import Program
from torchproof.checking.static.source import Class, Function, Source, walk
from torchproof.records import (
    Frame,
    Remedy,
    Replacement,
    Setting,
    whose,
)


class _Row(NamedTuple):
    """A tensor indexed by a number and slices, and the same row by `select`."""

    source: Source
    node: ast.Subscript
    position: ast.expr
    text: str


def selecting(name: str, frames: Sequence[Frame], frame: Frame) -> Remedy | None:
    """`x.select(1, name)` instead of `x[:, name]`, at a line and wherever it is passed.

    Both are the same view, but Dynamo makes an int between slices a constant, and so it
    does with a tensor of one number. The first frame is that of the compiled function.
    """
    first = next((each for each in frames if whose(each.file) == "user"), frame)
    source = changes.source_of(first.file)
    start = _around(source, first.line) if source else None
    if source is None or start is None:
        return None
    rows = [
        row
        for function, known in _passed_on(Program([source], follows=True), start, name)
        for node in walk(function.node)
        if (row := _row(function.source, node)) and _is_computed(row.position, known)
    ]
    at = (frame.file, frame.line)
    shown = next((r for r in rows if (str(r.source.path), r.node.lineno) == at), None)
    if shown is None:
        return None
    old = changes.code(shown.source, shown.node)
    title = f"write `{shown.text}` instead of `{old}`: select takes an int as an input"
    edits = []
    for each in dict.fromkeys(row.source for row in rows):
        new: dict[changes.Node, str] = {
            r.node: r.text for r in rows if r.source is each
        }
        edits.append(changes.edit(shorten(title, PROSE), each, new))
    if not all(edits):
        return None
    changed = tuple(r for edit in edits if edit for r in edit.replacements)
    return Remedy("edit", changed, title=shorten(title, PROSE))


def _passed_on(
    program: Program, start: Function, name: str
) -> Iterator[tuple[Function, str]]:
    """The functions that get a number as it is, each with its name there."""
    waiting, seen = [(start, name)], set()
    while waiting:
        function, known = waiting.pop()
        if (function, known) in seen:
            continue
        seen.add((function, known))
        yield function, known
        calls = (node for node in walk(function.node) if isinstance(node, ast.Call))
        passed = (
            (callee, _parameter(call, known, callee))
            for call in calls
            for callee in _callees(program, call, function)
        )
        waiting += [(callee, name) for callee, name in passed if name]


def _parameter(call: ast.Call, name: str, callee: Function) -> str | None:
    """The parameter that gets the value of a name."""
    for number, each in enumerate(call.args, start=int(callee.is_bound)):
        if ast.unparse(each) == name and number < len(callee.parameters):
            return callee.parameters[number].arg
    return next((k.arg for k in call.keywords if ast.unparse(k.value) == name), None)


def _callees(
    program: Program, call: ast.Call, function: Function
) -> Iterator[Function]:
    """The function that is called, or forward of what a list of modules holds."""
    if (known := program.callee(call, function)) is not None:
        yield known
        return
    source, holders = function.source, [call.func]
    if isinstance(call.func, ast.Name):
        loops = source.of(ast.For)
        holders = [n.iter for n in loops if source.dotted(n.target) == call.func.id]
    names = [source.own(node) for holder in holders for node in walk(holder)]
    if function.owner is None:
        return
    for name in filter(None, names):
        for value in program.assigned(function.owner, name):
            found = (program.find(source.dotted(n) or "", source) for n in walk(value))
            classes = [each for each in found if isinstance(each, Class)]
            yield from filter(None, (program.method(c, "forward") for c in classes))


def _around(source: Source, line: int) -> Function | None:
    """The innermost function at a line."""
    functions = source.functions.values()
    inside = [
        f for f in functions if f.node.lineno <= line <= (f.node.end_lineno or line)
    ]
    return max(inside, key=lambda function: function.node.lineno, default=None)


def _row(source: Source, node: ast.AST) -> _Row | None:
    if not isinstance(node, ast.Subscript):
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    kinds = [_kind(part) for part in parts]
    if kinds.count("index") != 1 or "other" in kinds or isinstance(node.ctx, ast.Del):
        return None
    if not isinstance(node.value, ast.Name | ast.Attribute):
        return None
    if not any(isinstance(each, ast.Slice) for each in parts) and "..." not in [
        changes.code(source, each) for each in parts
    ]:
        return None  # it may be the key of a dictionary
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
    return _Row(source, node, parts[at], row)


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
