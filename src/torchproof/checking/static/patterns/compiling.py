"""Misuse of torch.compile: useless try or timing, repeated compiling, new backends."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import ClassVar

from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation, Compiled
from torchproof.checking.static.patterns.pattern import (
    FilePattern,
    PatternMatch,
    shorten,
)
from torchproof.checking.static.source import Definition, Source, walk

# Exceptions that show whether torch.compile exists, not whether compiling works.
_PROBES = ("ImportError", "ModuleNotFoundError", "AttributeError", "NameError")
_CLOCKS = (
    "time.time",
    "time.perf_counter",
    "time.monotonic",
    "timeit.default_timer",
    "time.perf_counter_ns",
    "time.time_ns",
    "time.process_time",
)
_ALARMS = ("signal.alarm", "signal.setitimer")


class _SitePattern(FilePattern):
    """A bad pattern at a torch.compile, in files that contain one of the `words`."""

    words: ClassVar[tuple[str, ...]] = ("compile",)

    def read(self, source: Source) -> Iterator[PatternMatch]:
        file = compiled.of(source)
        if file is None or not any(word in source.text for word in self.words):
            return
        for site in file.sites:
            hit = self.at(site, file, shorten(source.text_of(site.node)))
            if hit is not None:
                yield hit

    def at(self, site: Compiled, file: Compilation, text: str) -> PatternMatch | None:
        raise AssertionError(f"{type(self).__name__} does not say what it looks for")


class LazyTry(_SitePattern):
    """try/except around torch.compile, and not around the first call."""

    code = "CF101"
    words = ("except",)

    def at(self, site: Compiled, file: Compilation, text: str) -> PatternMatch | None:
        block = _enclosing_try(site, file)
        if block is None or _mentions(file, site, block.body):
            return None
        return PatternMatch(
            site.node,
            f"the except around `{text}` catches no compile error",
            "torch.compile only wraps: compiling happens at the first call, and what"
            " goes wrong is raised there",
            "move the first call, with real inputs, into the try and keep the eager"
            " model in the except; or use torchproof.compile, which falls back to eager"
            " automatically",
        )


def _enclosing_try(site: Compiled, file: Compilation) -> ast.Try | None:
    """The try around the call, if its except handles compile errors."""
    parents = file.source.parents
    at: ast.AST = site.node
    while (up := parents.get(at)) is not None:
        if isinstance(up, Definition | ast.Lambda | ast.With):
            return None
        if isinstance(up, ast.Try) and up.handlers and at in up.body:
            handlers = [h for h in up.handlers if _goes_on(h, file.source)]
            return up if handlers else None
        at = up
    return None


def _goes_on(handler: ast.ExceptHandler, source: Source) -> bool:
    """Whether the handler continues without compiling, instead of raising again."""
    kind = handler.type
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind] if kind else []
    names = {source.dotted(each) or "" for each in kinds}
    probes = bool(names) and names <= set(_PROBES)
    return not probes and not any(isinstance(n, ast.Raise) for n in walk(handler))


def _mentions(file: Compilation, site: Compiled, body: Sequence[ast.stmt]) -> bool:
    """Whether the statements use the result, and so may call it."""
    target = file.name(site)
    parent = file.source.parents.get(site.node)
    if isinstance(parent, ast.Call):  # torch.compile(f)(x), or passed to a function
        return True
    name = target and file.source.dotted(target)
    if not name:
        return not isinstance(parent, ast.Return | ast.Expr | ast.Assign)
    for statement in body:
        for node in walk(statement):
            loads = isinstance(getattr(node, "ctx", None), ast.Load)
            if node is site.subject or not loads:
                continue
            is_reference = isinstance(node, ast.Name | ast.Attribute)
            if (
                is_reference
                and file.source.dotted(node) == name
                and _after(node, site.node)
            ):
                return True
    return False


def _after(node: ast.AST, other: ast.expr) -> bool:
    end = (other.end_lineno or other.lineno, other.end_col_offset or 0)
    place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    return place >= end


class TimedNothing(_SitePattern):
    """A clock or an alarm around torch.compile itself."""

    code = "CF111"
    words = ("time", "signal")

    def at(self, site: Compiled, file: Compilation, text: str) -> PatternMatch | None:
        guard = self._guard(site, file)
        if guard is None:
            return None
        what = "stops" if guard in _ALARMS else "times"
        return PatternMatch(
            site.node,
            f"`{guard}` around `{text}` {what} no compilation",
            "torch.compile only wraps: compiling happens at the first call, which is"
            " outside of what is limited or timed here",
            "put the first call, with real inputs, between the two; use"
            " torchproof.compile for a deadline, or torchproof bench to measure",
        )

    def _guard(self, site: Compiled, file: Compilation) -> str | None:
        statement, block = _statement(site.node, file.source)
        if statement is None or not isinstance(statement, ast.Assign | ast.Expr):
            return None
        index = block.index(statement)
        before = [_clock(each, file.source) for each in block[:index]]
        started = next((clock for clock in reversed(before) if clock), None)
        if started is None:
            return None
        for place, later in enumerate(block[index + 1 :], index + 1):
            if _clock(later, file.source) == started:
                between = block[index + 1 : place + 1]
                return None if _mentions(file, site, between) else started
            if not isinstance(later, ast.Assign | ast.Expr):
                return None
        return None


def _statement(node: ast.AST, source: Source) -> tuple[ast.stmt | None, list[ast.stmt]]:
    """The statement that contains a node, and the block of that statement."""
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.stmt):
        at = source.parents.get(at)
    if at is None:
        return None, []
    up = source.parents.get(at)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(up, name, [])
        if isinstance(block, list) and at in block:
            return at, block
    return None, []


def _clock(statement: ast.stmt, source: Source) -> str | None:
    """The clock or alarm that a simple statement calls; None if it calls none."""
    if not isinstance(statement, ast.Assign | ast.Expr):
        return None
    for node in walk(statement):
        if isinstance(node, ast.Call):
            dotted = source.dotted(node.func) or ""
            if dotted in _CLOCKS or dotted in _ALARMS:
                return dotted
    return None


class CompiledAnew(_SitePattern):
    """torch.compile inside forward, or in each iteration of a loop."""

    code = "CF105"
    severity = "low"

    def at(self, site: Compiled, file: Compilation, text: str) -> PatternMatch | None:
        where = _repeated(site, file)
        if where is None or _fresh_backend(site, file):
            return None
        return PatternMatch(
            site.node,
            f"`{text}` creates a new wrapper {where}",
            "each torch.compile makes a wrapper and looks its backend and options up,"
            " though what was compiled before is found again",
            "call torch.compile once, outside, and reuse its result",
        )


class FreshBackend(_SitePattern):
    """Repeated torch.compile, each time with a new backend object."""

    code = "RC219"
    kind = "recompile"
    certain = False
    calls = 2
    words = ("backend",)

    def at(self, site: Compiled, file: Compilation, text: str) -> PatternMatch | None:
        repeated = _repeated(site, file) or _in_inner_function(site, file)
        if not repeated or not _fresh_backend(site, file):
            return None
        return PatternMatch(
            site.node,
            f"`{text}` would recompile each time",
            "the backend is another object each time, so nothing that was compiled"
            " before is used again",
            "call torch.compile once, outside, or create the backend once",
        )


def _fresh_backend(site: Compiled, file: Compilation) -> bool:
    backend = site.arguments.get("backend")
    if isinstance(backend, ast.Lambda):
        return True
    if isinstance(backend, ast.Call):
        return file.source.dotted(backend.func) in ("functools.partial", "partial")
    if isinstance(backend, ast.Name):
        definition = file.bindings.meaning(backend)
        inside = file.bindings.scope(site.node)
        return (
            isinstance(definition, Definition)
            and file.bindings.scope(definition) is inside
        )
    return False


def _in_inner_function(site: Compiled, file: Compilation) -> str | None:
    """Whether the site is in an inner function, which is likely called repeatedly."""
    scope = file.bindings.scope(site.node)
    if not isinstance(scope, Definition) or site.function is not None:
        return None
    outer = file.bindings.scope(scope)
    returned = isinstance(file.source.parents.get(site.node), ast.Return)
    inner = isinstance(outer, Definition) and not returned
    return "at each call" if inner and scope.args.args else None


def _repeated(site: Compiled, file: Compilation) -> str | None:
    """Where a site runs repeatedly with the same subject; None if it does not."""
    if site.function is not None or site.subject is None:
        return None
    scope = file.bindings.scope(site.node)
    if isinstance(scope, Definition) and scope.name == "forward":
        owner = file.bindings.scope(scope)
        if isinstance(owner, ast.ClassDef) and not _is_cached(site, file):
            return "at each forward"
    at: ast.AST | None = site.node
    while (at := file.source.parents.get(at)) is not None and at is not scope:  # type: ignore[arg-type]
        if isinstance(at, ast.For | ast.While):
            return "in each iteration" if _invariant(site, at, file) else None
    return None


def _is_cached(site: Compiled, file: Compilation) -> bool:
    """Whether a condition guards it: `if self.compiled is None: ...`."""
    at: ast.AST | None = site.node
    while (at := file.source.parents.get(at)) is not None:  # type: ignore[arg-type]
        if isinstance(at, ast.If):
            return True
        if isinstance(at, Definition):
            return False
    return False


def _invariant(site: Compiled, loop: ast.For | ast.While, file: Compilation) -> bool:
    """Whether the loop compiles the same thing with the same arguments each time.

    A loop over blocks or over modes compiles something different each time.
    """
    changed = set()
    for node in walk(loop):
        stores = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.Name) and stores:
            changed.add(node.id)
        if isinstance(node, Definition):
            changed.add(node.name)
        if isinstance(node, ast.Call) and (
            (file.source.dotted(node.func) or "").endswith(("_dynamo.reset", ".reset"))
        ):
            return False
    used = {n.id for n in walk(site.node) if isinstance(n, ast.Name)}
    name = file.name(site)
    result = {name.id} if isinstance(name, ast.Name) else set()
    if not isinstance(name, ast.Name) or name.id in used:
        return False  # model = torch.compile(model): a different model each time
    guarded = any(
        isinstance(each, ast.If | ast.Break) and _holds(each, site.node)
        for each in walk(loop)
    )
    return not guarded and not (used - result) & changed


def _holds(node: ast.AST, inner: ast.AST) -> bool:
    return any(each is inner for each in walk(node))
