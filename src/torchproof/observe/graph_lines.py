"""Groups a graph's operations by the source lines that they were traced from."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchproof.records import original_name, whose

if TYPE_CHECKING:
    from torchproof.torch_private import Node

_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_MOST_LINES = 400

Place = tuple[str, int, str]


def lines_of(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """The lines of the user's and libraries' code, sorted by number of operations.

    A line includes the operations of the functions it calls. `repeats` is how often the
    same operation was traced from the same stack in the same module, as in an unrolled
    loop. `copies` is how many modules of one class, `block`, were traced there.
    """
    by_line: dict[Place, list[Node]] = defaultdict(list)
    for node in nodes:
        for place in dict.fromkeys(_places(node.stack or "")):
            by_line[place].append(node)
    # Outer lines come first in a stack, so a stable sort puts them first.
    ordered = sorted(by_line.items(), key=lambda item: -len(item[1]))
    return [_line(place, line_nodes) for place, line_nodes in ordered[:_MOST_LINES]]


def _line(place: Place, nodes: Sequence[Node]) -> dict[str, Any]:
    file, line, function = place
    same = Counter((node.target, node.stack, _innermost(node)) for node in nodes)
    block, copies = _block(nodes)
    return {
        "file": file,
        "line": line,
        "function": function,
        "nodes": len(nodes),
        "repeats": max(same.values()),
        "copies": copies,
        "block": block,
    }


def _innermost(node: Node) -> str:
    return node.modules[-1][0] if node.modules else ""


def _block(nodes: Sequence[Node]) -> tuple[str | None, int]:
    """The class of the outermost modules of which there are several, and how many."""
    deepest = max(len(node.modules) for node in nodes)
    for level in range(deepest):
        paths: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            if len(node.modules) > level:
                path, kind = node.modules[level]
                paths[kind].add(path)
        kind = max(paths, key=lambda name: len(paths[name]))
        if len(paths[kind]) > 1:
            return kind, len(paths[kind])
    return None, 0


@functools.lru_cache(maxsize=4096)
def _places(stack: str) -> tuple[Place, ...]:
    """The user's and libraries' frames of a formatted stack, outermost first."""
    return tuple(
        (file, int(line), original_name(function))
        for file, line, function in _FRAME.findall(stack)
        if whose(file) in {"user", "library"}
    )
