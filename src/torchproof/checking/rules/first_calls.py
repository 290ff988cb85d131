"""What a library does in its first call alone: hooks that it installs, tables it makes.

A function that returns at once if an attribute says that its work is done can be called
before the compiled call: then no call has anything to trace there.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence

from torchproof.checking.static import changes
from torchproof.records import (
    Frame,
    Remedy,
    module_of,
    tree_of,
    whose,
)


def done_before(stack: Sequence[Frame]) -> Remedy | None:
    """The edit that calls such a function where the user's class makes the module."""
    for number, (frame, inner) in enumerate(itertools.pairwise(stack)):
        name = inner.function.rpartition(".")[2]
        is_method = frame.code == f"self.{name}()"
        is_called = is_method or frame.code == f"{name}(self)"
        if is_called and whose(inner.file) == "library" and _is_done_once(inner):
            module = None if is_method else module_of(inner.file)
            path = list(_modules(stack[: number + 1]))
            if path and (is_method or module):
                return _with_call(path, name, module)
    return None


def _is_done_once(frame: Frame) -> bool:
    """Whether a function begins with `if self.is_done: return`."""
    name = frame.function.rpartition(".")[2]
    for node in ast.walk(tree_of(frame.file)):
        if not isinstance(node, ast.FunctionDef) or node.name != name:
            continue
        first = next((n for n in node.body if not isinstance(n, ast.Expr)), None)
        if isinstance(first, ast.If) and not first.orelse:
            test, body = ast.unparse(first.test), [*map(ast.unparse, first.body)]
            returns = body in (["return"], ["return None"])
            return returns and re.search(r"\w\.\w|(get|has)attr\(", test) is not None
    return False


def _modules(stack: Sequence[Frame]) -> Iterator[tuple[Frame, str]]:
    """The lines that call a module, from the innermost one of the user on.

    Each with the name of the module: `self.model` of `out = self.model(ids)`.
    """
    own = [frame for frame in stack if whose(frame.file) != "torch"]
    calls = [
        (frame, match[1])
        for frame, inner in itertools.pairwise(own)
        if (match := re.search(r"(?<![\w.])self((?:\.\w+)+)\(", frame.code))
        if not match[1].endswith(f".{inner.function}")  # a method of its own
    ]
    users = [n for n, (frame, _) in enumerate(calls) if whose(frame.file) == "user"]
    yield from calls[users[-1] :] if users else ()


def _with_call(
    path: Sequence[tuple[Frame, str]], name: str, module: str | None
) -> Remedy | None:
    """Calls a function with a module below the line that makes it."""
    (frame, attribute), *_ = path
    source = changes.source_of(frame.file)
    stored = [
        source.parents[node]
        for node in (source.of(ast.Attribute) if source else ())
        if source and not isinstance(node.ctx, ast.Load)
        if source.dotted(node) == f"self{attribute}"
    ]
    made = stored[0] if len(stored) == 1 else None
    if source is None or not isinstance(made, ast.Assign):
        return None
    owner = f"self{''.join(each for _, each in path)}"
    line = f"{name}({owner})" if module else f"{owner}.{name}()"
    title = f"do once, before the compiled call, what the first call does: `{line}`"
    own = changes.code(source, made)
    edit = changes.edit(title, source, {made: own}, below=line)
    imported = f"from {module} import {name}"
    return changes.with_import(edit, source, imported) if module else edit
