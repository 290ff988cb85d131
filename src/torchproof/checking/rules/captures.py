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
    source_text = "`{at.expression}` records CUDA graphs itself, inside another capture"
    cause_text = (
        "modes reduce-overhead and max-autotune record and replay CUDA graphs, and"
        " neither can be done while a stream is capturing: the capture fails"
    )
    fix_text = (
        "compile the captured function with the default mode, which records no CUDA"
        " graphs, and call it a few times before the capture"
    )

    def read(self, source: Source) -> Iterator[Match]:
        if "cuda.graph" not in source.text and "make_graphed" not in source.text:
            return
        file = compiled.of(source)
        for node in source.nodes if file.has_graphs else ():
            if isinstance(node, ast.With) and _captures(node, source):
                inside = [each for s in node.body for each in file.within(s)]
                yield from (Match(call) for call, site in inside if site.has_graphs)
            elif isinstance(node, ast.Call) and node.args:
                captured = "make_graphed" in (source.dotted(node.func) or "")
                site_inside = file.of(node.args[0]) if captured else None
                if site_inside is not None and site_inside.has_graphs:
                    yield Match(node)


def _captures(node: ast.With, source: Source) -> bool:
    for item in node.items:
        context = item.context_expr
        if isinstance(context, ast.Call):
            dotted = source.dotted(context.func) or ""
            if dotted in ("torch.cuda.graph", "torch.cuda.graphs.graph"):
                return True
    return False


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
    cause_text = (
        "without a mark, each call of a function compiled with CUDA graphs begins a"
        " step of its own, and a step frees what the one before it gave"
    )
    fix_text = (
        "call torch.compiler.cudagraph_mark_step_begin() before the first call, so that"
        " both calls belong to one step; or clone the output that is passed on, or"
        " compile both as one function"
    )

    def read(self, source: Source) -> Iterator[Match]:
        file = compiled.of(source)
        if not file.has_graphs or MARK in source.text:
            return
        for node, site in file.within(source.tree):
            if not site.has_graphs or not under_no_grad(node, file):
                continue
            for argument in node.args:
                producer = file.bindings.meaning(argument) or argument
                if not isinstance(producer, ast.Call):
                    continue
                other = file.of(producer.func)
                if other is not None and other is not site and other.has_graphs:
                    first, second = source.brief(producer, 30), source.brief(node.func)
                    yield Match(
                        producer,
                        f"the output of `{first}` would be overwritten before"
                        f" `{second}` reads it",
                    )


def under_no_grad(node: ast.AST, file: Compilation) -> bool:
    source = file.source
    for at in source.above(node):
        used: list[ast.expr] = []
        if isinstance(at, ast.With):
            used = [item.context_expr for item in at.items]
        elif isinstance(at, Definition):
            used = at.decorator_list
        names = [source.dotted(u.func if isinstance(u, ast.Call) else u) for u in used]
        if any(name in _GRADLESS for name in names):
            return True
        if isinstance(at, Definition):
            return False
    return False
