"""Where a file calls torch.compile, with which arguments, and how DDP lies to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torchproof.records import CompileSite
from torchproof.static.program import COMPILE
from torchproof.static.source import Definition, Source, walk

_ARGUMENTS = ("backend", "mode", "dynamic", "fullgraph", "options")
_PARALLEL = {"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"}
_PARALLEL |= {"fully_shard", "DataParallel"}


def of(source: Source) -> Iterator[CompileSite]:
    """Each call, and each decorator, in the order of the file."""
    found = []
    for node in source.nodes:
        if isinstance(node, ast.Call) and _compiles(node, source):
            found.append(_site(node, source))
        if isinstance(node, Definition):
            found += [
                _decorated(each, node, source)
                for each in node.decorator_list
                if not isinstance(each, ast.Call) and source.dotted(each) in COMPILE
            ]
    yield from sorted(found, key=lambda site: site.line)


def _compiles(node: ast.Call, source: Source) -> bool:
    dotted = source.dotted(node.func) or ""
    if dotted in COMPILE:
        return True
    if dotted in ("functools.partial", "partial") and node.args:
        return source.dotted(node.args[0]) in COMPILE
    method = isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
    if not method or dotted.startswith(("re.", "regex.", "builtins.")) or node.args:
        return False
    # model.compile(...): of others only where the arguments are torch.compile's.
    return bool(node.keywords) and all(k.arg in _ARGUMENTS for k in node.keywords)


def _site(node: ast.Call, source: Source) -> CompileSite:
    given = {k.arg: source.text_of(k.value) for k in node.keywords if k.arg}
    known: dict[str, Any] = {name: given.get(name) for name in _ARGUMENTS}
    subject = _subject(node, source)
    order = _order(node, subject, source)
    return CompileSite(
        file=str(source.path),
        line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        function=source.function_at(node),
        subject=subject,
        order=order,
        source=source.lines[node.lineno - 1],
        **known,
    )


def _subject(node: ast.Call, source: Source) -> str:
    own = source.dotted(node.func) not in COMPILE
    if own and isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
        return source.text_of(node.func.value)
    if node.args and source.dotted(node.func) in COMPILE:
        return source.text_of(node.args[0])
    parent = source.parents.get(node)
    return parent.name if isinstance(parent, Definition) else ""


def _decorated(node: ast.expr, function: Definition, source: Source) -> CompileSite:
    return CompileSite(
        file=str(source.path),
        line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        function=source.function_at(node),
        subject=function.name,
        source=source.lines[node.lineno - 1],
    )


def _order(node: ast.Call, subject: str, source: Source) -> str | None:
    """Whether the model was wrapped for several devices before or after this."""
    inside = source.function_at(node)
    for other in source.nodes:
        if not isinstance(other, ast.Call) or other is node:
            continue
        called = (source.dotted(other.func) or "").rpartition(".")[2]
        if called not in _PARALLEL or source.function_at(other) != inside:
            continue
        about = source.text_of(other.args[0]) if other.args else ""
        if subject and about.split(".")[0] not in (subject.split(".")[0], "torch"):
            continue
        within = any(child is other for child in walk(node))
        return "after" if within or other.lineno < node.lineno else "before"
    return None
