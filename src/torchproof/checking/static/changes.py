"""Edits of a file: other texts for some of its nodes, as whole lines."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from torchproof.checking.static.source import Source, Unreadable
from torchproof.records import Remedy, Replacement, Tier, blame, cells

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
    below: str = "",
    tier: Tier = "safe",
) -> Remedy | None:
    """Gives nodes other texts, and adds a statement below the last of them.

    None where whole lines cannot be replaced: the file's own lines end otherwise, or a
    statement shares its line with others.
    """
    if not _has_plain_lines(source):
        return None
    changes: list[Replacement] = []
    lines = [f"{line}\n" for line in source.lines]
    nodes = sorted(new, key=lambda node: (node.lineno, node.col_offset))
    while nodes:
        block = [nodes.pop(0)]
        last = block[0].end_lineno or block[0].lineno
        while nodes and nodes[0].lineno <= last:
            block.append(nodes.pop(0))
            last = max(last, block[-1].end_lineno or 0)
        added = below if not nodes else ""
        old = tuple(lines[block[0].lineno - 1 : last])
        indent = len(old[0]) - len(old[0].lstrip())
        if added and block[0].col_offset != indent:
            return None
        text = _replaced(old, block, new)
        text += f"{' ' * indent}{added}\n" if added else ""
        after = tuple(text.splitlines(keepends=True))
        changes.append(Replacement(_path(source), block[0].lineno, old, after))
    return Remedy("edit", tuple(changes), title=title, tier=tier)


def _replaced(old: Sequence[str], nodes: list[Node], new: Mapping[Node, str]) -> str:
    """Some lines, which begin with the first node, with other texts for all nodes."""
    lines, first = [line.encode() for line in old], nodes[0].lineno
    for node in reversed(nodes):  # the places of those before it stay
        start, end = node.lineno - first, (node.end_lineno or node.lineno) - first
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


def removed(title: str, source: Source, node: Node) -> Remedy | None:
    """Takes out the lines of a statement or decorator, if nothing else is on them."""
    first, last = node.lineno, node.end_lineno or node.lineno
    before = source.lines[first - 1].encode()[: node.col_offset].decode().strip()
    after = source.lines[last - 1].encode()[node.end_col_offset :].decode().strip()
    block = next(
        (b for b in _blocks(source.parents.get(node)) if node in b and len(b) > 1), None
    )
    alone = before == "@" if isinstance(node, ast.expr) else not before and block
    if not alone or not (not after or after.startswith("#")):
        return None
    if not _has_plain_lines(source):
        return None
    old = tuple(f"{line}\n" for line in source.lines[first - 1 : last])
    gone = Replacement(_path(source), first, old, ())
    return Remedy("edit", (gone,), title=title)


def _blocks(node: ast.AST | None) -> list[list[ast.stmt]]:
    names = ("body", "orelse", "finalbody")
    return [b for name in names if isinstance(b := getattr(node, name, None), list)]


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
    """Takes a keyword out of a call; None where comments would be lost."""
    whole = code(source, call)
    if "\n" in whole and "#" in whole:
        return None
    text = f"{code(source, call.func)}({arguments(source, call, (name,))})"
    return edit(title, source, {call: text})
