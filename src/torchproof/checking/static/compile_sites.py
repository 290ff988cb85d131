"""Lists where a file calls torch.compile, with its arguments and the DDP/FSDP order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import ARGUMENTS, is_true, name_of
from torchproof.checking.static.program import COMPILE
from torchproof.checking.static.source import Definition, Source
from torchproof.records import CompileSite

_OTHERS = ("torchproof.compile",)
_PARTIAL = ("functools.partial", "partial")
_PARALLEL = (*compiled.DDP, *compiled.FSDP, *compiled.SHARD, "DataParallel")
# Libraries whose objects have a method `compile()` that is not nn.Module's.
_NOT_MODULES = ("keras", "tensorflow", "sqlalchemy", "jinja2", "jax")


def of(source: Source) -> Iterator[CompileSite]:
    """Every call and every decorator, in the order of the file."""
    if "compile" not in source.text:
        return
    sites = []
    for node in source.nodes:
        if isinstance(node, ast.Call):
            subject = _called(node, source)
            if subject is not None:
                sites.append(_site(node, subject, source))
        elif isinstance(node, Definition):
            sites += [
                _site(each, node.name, source)
                for each in node.decorator_list
                if not isinstance(each, ast.Call)
                and source.dotted(each) in (*COMPILE, *_OTHERS)
            ]
    yield from sorted(sites, key=lambda site: site.line)


def _called(node: ast.Call, source: Source) -> str | None:
    """The source text of what a call compiles; None if it compiles nothing."""
    dotted = source.dotted(node.func) or ""
    if dotted in (*COMPILE, *_OTHERS):
        return _subject(node, source)
    if dotted in _PARTIAL and node.args and source.dotted(node.args[0]) in COMPILE:
        return _decorated(node, source)
    if any(k.arg == "torch_compile" and is_true(k.value) for k in node.keywords):
        return f"the model of {dotted.rpartition('.')[2]}"  # TrainingArguments
    if isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
        return source.text_of(node.func.value) if _in_place(node, source) else None
    return None


def _in_place(node: ast.Call, source: Source) -> bool:
    """Whether `x.compile(...)` is nn.Module's, judged by its arguments."""
    assert isinstance(node.func, ast.Attribute)
    if node.args or source.dotted(node.func.value) in ("re", "regex", "builtins"):
        return False
    if any(k.arg not in ARGUMENTS for k in node.keywords):
        return False
    others = any(word in source.text for word in _NOT_MODULES)
    return bool(node.keywords) or not others


def _subject(node: ast.Call, source: Source) -> str:
    subject = node.args[0] if node.args else None
    subject = subject or next(
        (k.value for k in node.keywords if k.arg == "model"), None
    )
    return source.text_of(subject) if subject is not None else _decorated(node, source)


def _decorated(node: ast.expr, source: Source) -> str:
    parent = source.parents.get(node)
    return parent.name if isinstance(parent, Definition) else ""


def _site(node: ast.expr, subject: str, source: Source) -> CompileSite:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    texts = {k.arg: source.text_of(k.value) for k in keywords if k.arg}
    arguments: dict[str, Any] = {name: texts.get(name) for name in ARGUMENTS}
    order, observation = _order(node, subject, source)
    return CompileSite(
        file=str(source.path),
        line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        function=source.function_at(node),
        subject=subject,
        order=order,
        observation=observation,
        source=source.lines[node.lineno - 1],
        **arguments,
    )


def _order(node: ast.expr, subject: str, source: Source) -> tuple[str | None, str]:
    """Whether the call comes before or after DDP or FSDP, and the consequence."""
    if not any(word in source.text for word in _PARALLEL):
        return None, ""
    file = compiled.of(source)
    for site in file.sites:
        wrapping = compiled.wrapped_before(site, file) if site.node is node else None
        if wrapping is not None:
            name = name_of(wrapping, source)
            return "after", _AFTER["DDP" if name in compiled.DDP else "FSDP"]
    later = _wraps_later(node, subject, source)
    return ("before", f"{later} wraps it afterwards") if later else (None, "")


_AFTER = {
    "DDP": "after DDP: the graphs are split at the gradient buckets",
    "FSDP": "after FSDP: the hooks of sharded modules break the graphs",
}


def _wraps_later(node: ast.expr, subject: str, source: Source) -> str | None:
    """The name of the wrapper applied to the compiled model later in the function."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.Call) and name_of(parent, source) in _PARALLEL:
        return name_of(parent, source)
    names = {subject}
    if isinstance(parent, ast.Assign):
        names |= {source.dotted(target) or "" for target in parent.targets}
    inside = source.function_at(node)
    for other in source.nodes:
        if not isinstance(other, ast.Call) or not other.args:
            continue
        called = name_of(other, source)
        if called not in _PARALLEL or other.lineno <= node.lineno:
            continue
        about = source.dotted(other.args[0]) or ""
        if about in names - {""} and source.function_at(other) == inside:
            return called
    return None
