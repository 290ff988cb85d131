"""Edits of a file: other texts for some of its nodes, as whole lines."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchproof.checking.static.source import Source, Unreadable
from torchproof.records import Remedy, Replacement, Tier, blame, cells, tree_of

Node = ast.expr | ast.stmt | ast.keyword | ast.arg


@functools.lru_cache(maxsize=8)
def _parsed(file: str, text: str) -> Source | None:
    try:
        return Source.parse(Path(file), text)
    except Unreadable:
        return None


def source_of(file: str) -> Source | None:
    """A file that a run has shown; None if it cannot be read."""
    return _parsed(file, "".join(blame.lines_of(file)))


def edit(
    title: str,
    source: Source,
    new: Mapping[Node, str],
    *,
    above: Sequence[str] = (),
    below: str = "",
    tier: Tier = "safe",
) -> Remedy | None:
    """Gives nodes other texts, and adds lines above the first or below the last.

    None where whole lines cannot be replaced: the file's own lines end otherwise, a
    statement shares its line with others, or a comment would be lost.
    """
    if not _has_plain_lines(source) or _drops_comment(source, new):
        return None
    changes: list[Replacement] = []
    lines = [f"{line}\n" for line in source.lines]
    nodes = sorted(new, key=lambda node: (node.lineno, node.col_offset))
    while nodes:
        block = [nodes.pop(0)]
        last = _last(block[0])
        while nodes and nodes[0].lineno <= last:
            block.append(nodes.pop(0))
            last = max(last, _last(block[-1]))
        first = () if changes else above
        added = [*first, *([below] if below and not nodes else [])]
        if added and not all(_has_own_lines(source, node) for node in block):
            return None
        old = tuple(lines[block[0].lineno - 1 : last])
        indent = old[0][: len(old[0]) - len(old[0].lstrip())]
        rows = [f"{indent}{each}\n" for each in added]
        text = _replaced(old, block, new)
        if not text.strip():  # a statement that is left out
            text = ""
        text = "".join([*rows[: len(first)], text, *rows[len(first) :]])
        after = tuple(text.splitlines(keepends=True))
        changes.append(Replacement(_path(source), block[0].lineno, old, after))
    return Remedy("edit", tuple(changes), title=title, tier=tier)


def _replaced(old: Sequence[str], nodes: list[Node], new: Mapping[Node, str]) -> str:
    """Some lines, which begin with the first node, with other texts for all nodes."""
    lines, first = [line.encode() for line in old], nodes[0].lineno
    for node in reversed(nodes):  # the places of those before it stay
        start, end = node.lineno - first, _last(node) - first
        head, tail = lines[start][: node.col_offset], lines[end][node.end_col_offset :]
        lines[start : end + 1] = [head + new[node].encode() + tail]
    return b"".join(lines).decode()


def _path(source: Source) -> str:
    return os.path.abspath(source.path)


def _has_plain_lines(source: Source) -> bool:
    """Whether the file has the lines that were parsed, each with its end."""
    try:
        raw = cells.read_source(source.path)
    except OSError:
        return False
    return b"\r" not in raw and raw.endswith(b"\n")


def _drops_comment(source: Source, new: Mapping[Node, str]) -> bool:
    """Whether nodes of several lines have comments that their new texts have not."""
    return any(
        "#" in line and line.strip() not in text
        for node, text in new.items()
        if len(lines := code(source, node).splitlines()) > 1
        for line in lines
    )


def _has_own_lines(source: Source, node: Node, before: str = "") -> bool:
    """Whether a statement has no other on its lines, or a decorator its `@`."""
    first, last = source.lines[node.lineno - 1], source.lines[_last(node) - 1]
    head = first.encode()[: node.col_offset].decode().strip()
    rest = last.encode()[node.end_col_offset :].decode().strip()
    return head == before and (not rest or rest.startswith("#"))


def first_line(node: ast.stmt) -> int:
    """The first line of a statement, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _last(node: Node) -> int:
    return node.end_lineno or node.lineno


def removed(title: str, source: Source, node: Node) -> Remedy | None:
    """Takes out the lines of a statement or decorator, if nothing else is on them."""
    is_decorator = isinstance(node, ast.expr)
    if not _has_own_lines(source, node, "@" if is_decorator else ""):
        return None
    if not is_decorator and [node] in vars(source.parents[node]).values():
        return edit(title, source, {node: "pass"})
    if not _has_plain_lines(source):
        return None
    old = tuple(f"{line}\n" for line in source.lines[node.lineno - 1 : _last(node)])
    gone = Replacement(_path(source), node.lineno, old, ())
    return Remedy("edit", (gone,), title=title)


def moved_above(
    title: str, source: Source, node: ast.stmt, other: ast.stmt
) -> Remedy | None:
    """Moves a statement out of a statement of the module that it is in, above it."""
    gone = removed(title, source, node)
    if gone is None:
        return None
    [own] = gone.replacements
    block = textwrap.dedent("".join(own.old))
    if own.new == () and not source.lines[_last(node)].strip():
        own = replace(own, old=(*own.old, "\n"))  # the blank line below it
    decorators: list[ast.expr] = getattr(other, "decorator_list", [])
    first = min([other.lineno, *(each.lineno for each in decorators)])
    rows = (*block.splitlines(keepends=True), "\n", "\n")
    return replace(gone, replacements=(_inserted(source, first, rows), own))


def _inserted(source: Source, line: int, rows: Sequence[str]) -> Replacement:
    """New lines in front of a line."""
    above = [f"{each}\n" for each in source.lines[: line - 1]]
    start = max((i for i, each in enumerate(above) if each.strip()), default=0)
    return Replacement(_path(source), line, (), tuple(rows), below=tuple(above[start:]))


def with_import(remedy: Remedy | None, source: Source, line: str) -> Remedy | None:
    """An edit with an import below the first ones of its file."""
    body = itertools.takewhile(
        lambda n: not isinstance(n, ast.FunctionDef | ast.ClassDef), source.tree.body
    )
    imports = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
    if remedy is None or not imports or line in source.lines:
        return remedy
    new = _inserted(source, _last(imports[-1]) + 1, (f"{line}\n",))
    return replace(remedy, replacements=(new, *remedy.replacements))


def statement_at(source: Source, line: int) -> ast.stmt | None:
    """The innermost statement at a line, if no other one is on its lines."""
    statements = [n for n in source.nodes if isinstance(n, ast.stmt)]
    inside = [n for n in statements if n.lineno <= line <= _last(n)]
    node = max(inside, key=lambda n: n.lineno, default=None)
    return node if node is not None and _has_own_lines(source, node) else None


def imports_torch(file: str) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any((each.asname or each.name) == "torch" for each in node.names)
        for node in tree_of(file).body
    )


def code(source: Source, node: ast.AST) -> str:
    """The code of a node, as it is written."""
    return ast.get_source_segment(source.text, node) or ""


def arguments(
    source: Source, call: ast.Call, without: Collection[str] = (), first: int = 0
) -> str:
    """The arguments of a call as it is written, without some keywords."""
    kept = [*call.args[first:], *(k for k in call.keywords if k.arg not in without)]
    return ", ".join(code(source, each) for each in kept)


def without_keyword(
    title: str, source: Source, call: ast.Call, name: str
) -> Remedy | None:
    """Takes a keyword out of a call."""
    text = f"{code(source, call.func)}({arguments(source, call, (name,))})"
    return edit(title, source, {call: text})
