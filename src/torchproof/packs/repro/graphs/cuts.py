"""Removes parts of a graph; values that are cut off become inputs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from torchproof.packs.repro.graphs.graph_ir import (
    Function,
    GraphIR,
    Input,
    Line,
    names,
    substitute,
)


def prune(graph: GraphIR) -> GraphIR:
    """Removes lines, inputs and subgraphs that nothing reads."""
    needed = {name for output in graph.outputs for name in names(output)}
    lines: list[Line] = []
    for line in reversed(graph.lines):
        if line.name in needed or (line.has_effect and not _enters_context(line)):
            lines.append(line)
            needed |= {*line.uses}
    functions: list[Function] = []
    for inner in reversed(graph.functions):  # an outer one comes after those it calls
        if inner.name in needed:
            functions.append(inner)
            needed |= {name for line in inner.lines for name in line.uses}
    return replace(
        graph,
        inputs=tuple(entry for entry in graph.inputs if entry.name in needed),
        lines=tuple(reversed(lines)),
        functions=tuple(reversed(functions)),
    )


def remove_lines(graph: GraphIR, removed: Iterable[str]) -> GraphIR | None:
    """Removes lines; returns None if no output would be left.

    A value that other lines read becomes an input, or the recorded number.
    """
    lines = {line.name: line for line in graph.lines}
    removed = _with_dependents(graph, {*removed})
    outputs = tuple(out for out in graph.outputs if not removed & {*names(out)})
    if not outputs:
        return None
    kept = [line for line in graph.lines if line.name not in removed]
    read = {name for line in kept for name in line.uses} & removed
    numbers = {name: lines[name].literal for name in read if lines[name].literal}
    cut = [name for name in lines if name in read - {*numbers}]
    inputs = {name: f"x_{name}" for name in cut}
    return replace(
        graph,
        inputs=(*graph.inputs, *(_input(inputs[name], lines[name]) for name in cut)),
        lines=tuple(_reading(line, inputs | numbers) for line in kept),
        outputs=outputs,
    )


def keep_first_lines(graph: GraphIR, count: int) -> GraphIR | None:
    """Keeps the first lines; the tensors that later lines read become outputs."""
    first, rest = graph.lines[:count], graph.lines[count:]
    later = {name for line in rest for name in line.uses}
    later |= {name for output in graph.outputs for name in names(output)}
    outputs = [line.name for line in first if line.facts and line.name in later]
    if not outputs:
        return None
    return replace(graph, lines=first, outputs=tuple(outputs))


def bypass(graph: GraphIR, line: Line, operand: str) -> GraphIR:
    """Replaces a line by one of its operands."""
    values = {line.name: operand}
    lines = [_reading(each, values) for each in graph.lines if each is not line]
    outputs = tuple(dict.fromkeys(substitute(out, values) for out in graph.outputs))
    return replace(graph, lines=tuple(lines), outputs=outputs)


def operands(graph: GraphIR, line: Line) -> list[str]:
    """Returns the operands that could replace a line: same shape and dtype."""
    facts = {entry.name: entry.facts for entry in graph.inputs}
    facts |= {other.name: other.facts for other in graph.lines if other.facts}
    result = line.facts
    return [
        name
        for name in line.uses
        if result
        and (operand := facts.get(name))
        and (operand.shape, operand.dtype) == (result.shape, result.dtype)
    ]


def inline(graph: GraphIR) -> GraphIR:
    """Replaces plain calls of subgraphs by the lines of the subgraph."""
    functions = {inner.name: inner for inner in graph.functions}
    lines: list[Line] = []
    for count, line in enumerate(graph.lines):
        called = _called(line, functions)
        if called is None:
            lines.append(line)
        else:
            lines += _body(*called, line, f"_{count}")
    return replace(graph, lines=tuple(lines))


def _called(
    line: Line, functions: Mapping[str, Function]
) -> tuple[Function, list[str]] | None:
    """Returns the subgraph that a line calls directly, and its arguments."""
    call = ast.parse(line.expression, mode="eval").body
    if not isinstance(call, ast.Call):
        return None
    callee = call.func
    arguments = list(call.args)
    if ast.unparse(callee) == "torch.utils.checkpoint.checkpoint" and arguments:
        callee, *arguments = arguments
    if not isinstance(callee, ast.Name) or callee.id not in functions:
        return None
    return functions[callee.id], [ast.unparse(value) for value in arguments]


def _body(inner: Function, arguments: list[str], line: Line, suffix: str) -> list[Line]:
    """Returns the lines of a subgraph, with unique names for this call."""
    values = dict(zip(inner.parameters, arguments, strict=True))
    lines = []
    for inner_line in inner.lines:
        values[inner_line.name] = f"{inner_line.name}{suffix}"
        lines.append(
            replace(_reading(inner_line, values), name=values[inner_line.name])
        )
    result = substitute(inner.result, values)
    return [*lines, replace(line, expression=result, has_effect=False)]


def _with_dependents(graph: GraphIR, first: Set[str]) -> set[str]:
    """Adds the lines that read a removed value which cannot be an input."""
    removed = {*first}
    opaque = {
        line.name
        for line in graph.lines
        if line.name in removed and not (line.facts or line.literal)
    }
    for line in graph.lines:
        if line.name not in removed and opaque & {*line.uses}:
            removed.add(line.name)
        if line.name in removed and not (line.facts or line.literal):
            opaque.add(line.name)
    return removed


def _input(name: str, line: Line) -> Input:
    assert line.facts is not None
    return Input(name, line.facts)


def _reading(line: Line, values: Mapping[str, str]) -> Line:
    return replace(line, expression=substitute(line.expression, values))


def _enters_context(line: Line) -> bool:
    """Whether a line enters a context that another line exits."""
    return "._enter_" in line.expression
