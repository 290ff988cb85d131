"""Misuse of CUDA graphs: nested captures, unmarked steps, outputs kept too long."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation
from torchproof.checking.static.patterns.pattern import (
    FilePattern,
    PatternMatch,
    shorten,
)
from torchproof.checking.static.source import Definition, Source, walk

_GRADLESS = ("torch.no_grad", "torch.inference_mode")
_MARK = "cudagraph_mark_step_begin"
_STEPS = ("backward", _MARK)
# Methods that return a view of the same memory.
_VIEWS = {
    "detach",
    "view",
    "view_as",
    "squeeze",
    "unsqueeze",
    "transpose",
    "permute",
    "reshape",
    "flatten",
    "expand",
    "contiguous",
    "t",
    "unbind",
    "chunk",
}
_FRESH = {"shape", "dtype", "device", "ndim"}


class CaptureInCapture(FilePattern):
    """torch.cuda.graph around compiled code that records CUDA graphs itself."""

    code = "CF103"
    severity = "high"

    def read(self, source: Source) -> Iterator[PatternMatch]:
        if "cuda.graph" not in source.text and "make_graphed" not in source.text:
            return
        file = _with_graphs(source)
        if file is None:
            return
        for node in source.nodes:
            if isinstance(node, ast.With) and _captures(node, source):
                for statement in node.body:
                    for call, site in file.within(statement):
                        if site.has_graphs:
                            yield self._match(call, source)
            elif isinstance(node, ast.Call) and node.args:
                called = source.dotted(node.func) or ""
                inner_site = file.of(node.args[0]) if "make_graphed" in called else None
                if inner_site is not None and inner_site.has_graphs:
                    yield self._match(node, source)

    def _match(self, node: ast.Call, source: Source) -> PatternMatch:
        return PatternMatch(
            node,
            f"`{shorten(source.text_of(node))}` records CUDA graphs itself, inside"
            " another capture",
            "modes reduce-overhead and max-autotune record and replay CUDA graphs, and"
            " neither can be done while a stream is capturing: the capture fails",
            "compile the captured function with the default mode, which records no CUDA"
            " graphs, and call it a few times before the capture",
        )


def _captures(node: ast.With, source: Source) -> bool:
    for item in node.items:
        context = item.context_expr
        if isinstance(context, ast.Call):
            dotted = source.dotted(context.func) or ""
            if dotted in ("torch.cuda.graph", "torch.cuda.graphs.graph"):
                return True
    return False


def _with_graphs(source: Source) -> Compilation | None:
    file = compiled.of(source)
    if file is None or not any(site.has_graphs for site in file.sites):
        return None
    return file


class UnmarkedSteps(FilePattern):
    """Chained compiled functions with CUDA graphs, and no call that marks a step."""

    code = "CF104"
    kind = "cudagraph_lifetime"
    certain = False
    shown_by = ("CG301", "CG304")
    calls = 2

    def read(self, source: Source) -> Iterator[PatternMatch]:
        file = _with_graphs(source)
        if file is None or _MARK in source.text or not _is_gradless(source):
            return
        for node in source.nodes:
            if not isinstance(node, ast.Call):
                continue
            site = file.of(node.func)
            if site is None or not site.has_graphs:
                continue
            for argument in node.args:
                producer = file.bindings.meaning(argument) or argument
                inner = producer.func if isinstance(producer, ast.Call) else None
                other = file.of(inner) if inner is not None else None
                gradless = _under_no_grad(node, file)
                if other is None or other is site or not other.has_graphs:
                    continue
                if gradless:
                    yield self._match(producer, node, source)

    def _match(self, producer: ast.AST, node: ast.Call, source: Source) -> PatternMatch:
        assert isinstance(producer, ast.expr)
        first = shorten(source.text_of(producer), 30)
        second = shorten(source.text_of(node.func), 30)
        return PatternMatch(
            producer,
            f"the output of `{first}` would be overwritten before `{second}` reads it",
            "without a mark, each call of a function compiled with CUDA graphs begins"
            " a step of its own, and a step frees what the one before it gave",
            "call torch.compiler.cudagraph_mark_step_begin() before the first call, so"
            " that both calls belong to one step; or clone the output that is passed"
            " on, or compile both as one function",
        )


def _is_gradless(source: Source) -> bool:
    return "no_grad" in source.text or "inference_mode" in source.text


def _under_no_grad(node: ast.AST, file: Compilation) -> bool:
    source = file.source
    at: ast.AST | None = node
    while (at := source.parents.get(at)) is not None:  # type: ignore[arg-type]
        if isinstance(at, ast.With):
            contexts = [item.context_expr for item in at.items]
            names = [source.dotted(m.func) for m in contexts if isinstance(m, ast.Call)]
            if any(name in _GRADLESS for name in names):
                return True
        if isinstance(at, Definition):
            calls = [
                d.func if isinstance(d, ast.Call) else d for d in at.decorator_list
            ]
            return any(source.dotted(each) in _GRADLESS for each in calls)
    return False


class KeptOutput(FilePattern):
    """A loop keeps outputs of CUDA graphs, or feeds them back, without a copy."""

    code = "CG301"
    kind = "cudagraph_lifetime"
    certain = False
    shown_by = ("CG301", "CG304")
    calls = 1

    def read(self, source: Source) -> Iterator[PatternMatch]:
        file = _with_graphs(source)
        if file is None:
            return
        reported: set[ast.AST] = set()
        for node in source.nodes:
            repeats = isinstance(node, ast.For | ast.While) or _is_method(node, file)
            if repeats and _begins_steps(node, file):
                for statement in node.body:  # type: ignore[attr-defined]
                    yield from self._kept(statement, node, file, reported)
            elif (
                isinstance(node, ast.ListComp)
                and _is_output(node.elt, file)
                and _under_no_grad(node, file)
            ):
                yield self._match(node, node.elt, source)

    def _kept(
        self,
        statement: ast.stmt,
        loop: ast.AST,
        file: Compilation,
        reported: set[ast.AST],
    ) -> Iterator[PatternMatch]:
        for node in walk(statement):
            value = _stored(node, loop, file)
            if value is None or node in reported or not _is_output(value, file):
                continue
            reported.add(node)
            assert isinstance(node, ast.expr | ast.stmt)
            yield self._match(node, value, file.source)

    def _match(
        self, node: ast.expr | ast.stmt, value: ast.expr, source: Source
    ) -> PatternMatch:
        whole = source.text_of(value)
        text = shorten(whole, 40)
        copy = f"{text}.clone()" if text == whole else ".clone()"
        return PatternMatch(
            node,
            f"`{text}` is kept, and later calls would overwrite it",
            "with CUDA graphs every call writes its outputs to the same memory, so an"
            " output is good until the next call",
            f"keep a copy, made outside the compiled function: {copy}; or keep the"
            " result of .item() or .cpu()",
        )


def _is_method(node: ast.AST, file: Compilation) -> bool:
    """Whether a node is a method, which repeated calls may use to keep outputs."""
    if not isinstance(node, Definition) or node.name == "__init__":
        return False
    return isinstance(file.source.parents.get(node), ast.ClassDef)


def _begins_steps(loop: ast.AST, file: Compilation) -> bool:
    """Whether each iteration starts a new step: no backward is pending."""
    inside = loop.body[0] if isinstance(loop, Definition) else loop
    if _under_no_grad(inside, file):
        return True
    for node in walk(loop):
        attribute = node.func if isinstance(node, ast.Call) else None
        if isinstance(attribute, ast.Attribute) and attribute.attr in _STEPS:
            return True
        if isinstance(node, ast.With) and _under_no_grad(node.body[0], file):
            return True
    return False


def _stored(node: ast.AST, loop: ast.AST, file: Compilation) -> ast.expr | None:
    """The value that a node stores beyond one iteration of the loop."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        stores = node.func.attr in ("append", "appendleft", "add", "put") and node.args
        return node.args[0] if stores and _outlives(node.func.value, loop) else None
    if not isinstance(node, ast.Assign):
        return None
    for target in node.targets:
        if isinstance(target, ast.Attribute):
            return node.value
        if isinstance(target, ast.Subscript) and _outlives(target.value, loop):
            # out[i] = y copies into a tensor; a dict or a list keeps y itself.
            container = file.bindings.meaning(target.value)
            plain = isinstance(container, ast.Dict | ast.List | ast.ListComp)
            return node.value if plain else None
        turns = isinstance(loop, ast.For | ast.While)
        if turns and isinstance(target, ast.Name) and _feeds_back(node, target):
            return node.value
    return None


def _feeds_back(node: ast.Assign, target: ast.Name) -> bool:
    """Whether an assignment is `state = step(state)`."""
    if not isinstance(node.value, ast.Call):
        return False
    return any(isinstance(a, ast.Name) and a.id == target.id for a in node.value.args)


def _outlives(node: ast.expr, loop: ast.AST) -> bool:
    """Whether a container is created outside the loop."""
    if not isinstance(node, ast.Name):
        return True
    return not any(
        isinstance(each, ast.Name)
        and each.id == node.id
        and isinstance(each.ctx, ast.Store)
        for each in walk(loop)
    )


def _is_output(value: ast.expr, file: Compilation) -> bool:
    """Whether a value is an output of a CUDA graph, or a view of one."""
    at: ast.AST | None = value
    for _ in range(6):
        if isinstance(at, ast.Call):
            site = file.of(at.func)
            if site is not None:
                return site.has_graphs
            view = isinstance(at.func, ast.Attribute) and at.func.attr in _VIEWS
            at = at.func.value if view else None  # type: ignore[attr-defined]
        elif isinstance(at, ast.Name):
            at = file.bindings.meaning(at)
        elif isinstance(at, ast.Subscript | ast.Attribute):
            at = None if getattr(at, "attr", "") in _FRESH else at.value
        else:
            return False
    return False
