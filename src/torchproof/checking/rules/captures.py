"""Misuse of CUDA graphs: nested captures, unmarked steps, outputs kept too long."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation
from torchproof.checking.static.source import Definition, Source

_GRADLESS = ("torch.no_grad", "torch.inference_mode")
MARK = "cudagraph_mark_step_begin"


class CaptureInCapture(SourceRule):
    """torch.cuda.graph captures a function that records CUDA graphs itself.

    ## Why
    The modes reduce-overhead and max-autotune record and replay CUDA graphs. Neither is
    possible on a stream that is capturing, so the capture fails.

    ## Bad
        step = torch.compile(step, mode="reduce-overhead")
        with torch.cuda.graph(graph):
            out = step(x)

    ## Good
        step = torch.compile(step)
        for _ in range(3):
            step(x)
        with torch.cuda.graph(graph):
            out = step(x)

    ## Fix safety
    One captured graph replaces many. Warm up with the shapes that you capture.
    """

    code = "CF103"
    reference = torch_pages.CAPTURES
    source_severity = "high"

    def read(self, source: Source) -> Iterator[Match]:
        if "cuda.graph" not in source.text and "make_graphed" not in source.text:
            return
        file = with_graphs(source)
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

    def _match(self, node: ast.Call, source: Source) -> Match:
        return Match(
            node,
            f"`{source.brief(node)}` records CUDA graphs itself, inside"
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


def with_graphs(source: Source) -> Compilation | None:
    file = compiled.of(source)
    if file is None or not any(site.has_graphs for site in file.sites):
        return None
    return file


class UnmarkedSteps(SourceRule):
    """Functions compiled with CUDA graphs are chained, and no step is marked.

    ## Why
    Without gradients, each call begins a step, and a step frees the outputs of the step
    before it. The second function reads memory that is being overwritten.

    ## Bad
        features = encoder(batch)     # both mode="reduce-overhead"
        text = decoder(features)

    ## Good
        torch.compiler.cudagraph_mark_step_begin()
        features = encoder(batch)
        text = decoder(features)

    ## Fix safety
    A mark begins a step and frees the outputs of the step before: clone the outputs
    that must live longer.
    """

    code = "CF104"
    reference = torch_pages.CUDAGRAPHS
    kind = "cudagraph_lifetime"
    certain = False
    shown_by = ("CG301", "CG304")
    calls = 2

    def read(self, source: Source) -> Iterator[Match]:
        file = with_graphs(source)
        if file is None or MARK in source.text or not _is_gradless(source):
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
                gradless = under_no_grad(node, file)
                if other is None or other is site or not other.has_graphs:
                    continue
                if gradless:
                    yield self._match(producer, node, source)

    def _match(self, producer: ast.AST, node: ast.Call, source: Source) -> Match:
        assert isinstance(producer, ast.expr)
        first = source.brief(producer, 30)
        second = source.brief(node.func, 30)
        return Match(
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


def under_no_grad(node: ast.AST, file: Compilation) -> bool:
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
