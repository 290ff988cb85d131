"""Sketches with something taken out of them; what is cut off becomes an input."""

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
    renamed,
)


def pruned(graph: GraphIR) -> GraphIR:
    """Without what nothing reads: lines, then inputs and functions."""
    wanted = {name for output in graph.outputs for name in names(output)}
    lines: list[Line] = []
    for line in reversed(graph.lines):
        if line.name in wanted or (line.acts and not _opens(line)):
            lines.append(line)
            wanted |= {*line.uses}
    functions: list[Function] = []
    for inner in reversed(graph.functions):  # an outer one comes after those it calls
        if inner.name in wanted:
            functions.append(inner)
            wanted |= {name for line in inner.lines for name in line.uses}
    return replace(
        graph,
        inputs=tuple(entry for entry in graph.inputs if entry.name in wanted),
        lines=tuple(reversed(lines)),
        functions=tuple(reversed(functions)),
    )


def without(graph: GraphIR, gone: Iterable[str]) -> GraphIR | None:
    """Without these lines; None where nothing would be left to look at.

    What others read of them becomes an input, or the number that it was.
    """
    lines = {line.name: line for line in graph.lines}
    gone = _with_dependents(graph, {*gone})
    outputs = tuple(out for out in graph.outputs if not gone & {*names(out)})
    if not outputs:
        return None
    kept = [line for line in graph.lines if line.name not in gone]
    read = {name for line in kept for name in line.uses} & gone
    numbers = {name: lines[name].literal for name in read if lines[name].literal}
    fresh = [name for name in lines if name in read - {*numbers}]
    told = {name: f"x_{name}" for name in fresh}
    return replace(
        graph,
        inputs=(*graph.inputs, *(_input(told[name], lines[name]) for name in fresh)),
        lines=tuple(_reading(line, told | numbers) for line in kept),
        outputs=outputs,
    )


def ending_at(graph: GraphIR, count: int) -> GraphIR | None:
    """The first lines alone; outputs are the tensors that the rest would read."""
    kept, rest = graph.lines[:count], graph.lines[count:]
    later = {name for line in rest for name in line.uses}
    later |= {name for output in graph.outputs for name in names(output)}
    outputs = [line.name for line in kept if line.facts and line.name in later]
    if not outputs:
        return None
    return replace(graph, lines=kept, outputs=tuple(outputs))


def bypassed(graph: GraphIR, line: Line, operand: str) -> GraphIR:
    """With one of a line's operands in its place."""
    other = {line.name: operand}
    lines = [_reading(kept, other) for kept in graph.lines if kept is not line]
    outputs = tuple(dict.fromkeys(renamed(out, other) for out in graph.outputs))
    return replace(graph, lines=tuple(lines), outputs=outputs)


def operands(graph: GraphIR, line: Line) -> list[str]:
    """What a line reads and could stand in its place: a tensor like its own."""
    facts = {entry.name: entry.facts for entry in graph.inputs}
    facts |= {other.name: other.facts for other in graph.lines if other.facts}
    own = line.facts
    return [
        name
        for name in line.uses
        if own
        and (found := facts.get(name))
        and (found.shape, found.dtype) == (own.shape, own.dtype)
    ]


def inlined(graph: GraphIR) -> GraphIR:
    """With the graphs inside it that are merely called put where they are called."""
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
    """The graph that a line merely calls, and what it gives it."""
    call = ast.parse(line.expression, mode="eval").body
    if not isinstance(call, ast.Call):
        return None
    callee, given = call.func, list(call.args)
    if ast.unparse(callee) == "torch.utils.checkpoint.checkpoint" and given:
        callee, given = given[0], given[1:]
    if not isinstance(callee, ast.Name) or callee.id not in functions:
        return None
    return functions[callee.id], [ast.unparse(value) for value in given]


def _body(inner: Function, given: list[str], line: Line, ending: str) -> list[Line]:
    """The lines of a graph inside, under names of their own for this call."""
    told = dict(zip(inner.parameters, given, strict=True))
    lines = []
    for own in inner.lines:
        told[own.name] = f"{own.name}{ending}"
        lines.append(replace(_reading(own, told), name=told[own.name]))
    result = renamed(inner.result, told)
    return [*lines, replace(line, expression=result, acts=False)]


def _with_dependents(graph: GraphIR, gone: Set[str]) -> set[str]:
    """And with those that read of them what cannot be an input."""
    lost = {*gone}
    odd = {
        line.name
        for line in graph.lines
        if line.name in lost and not (line.facts or line.literal)
    }
    for line in graph.lines:
        if line.name not in lost and odd & {*line.uses}:
            lost.add(line.name)
        if line.name in lost and not (line.facts or line.literal):
            odd.add(line.name)
    return lost


def _input(name: str, line: Line) -> Input:
    assert line.facts is not None
    return Input(name, line.facts)


def _reading(line: Line, other: Mapping[str, str]) -> Line:
    return replace(line, expression=renamed(line.expression, other))


def _opens(line: Line) -> bool:
    """Whether a line only opens what another one closes."""
    return "._enter_" in line.expression
