"""Replaces sizes in a graph by smaller ones."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from torchproof.packs.repro.graphs.graph_ir import (
    GraphIR,
    Input,
    Line,
    TensorFacts,
    Values,
    contiguous,
)


def sizes(graph: GraphIR) -> list[int]:
    """Returns the sizes of the inputs, those of the largest tensors first."""
    elements: Counter[int] = Counter()
    for entry in graph.inputs:
        for size in {*entry.facts.shape}:
            elements[size] += 0 if entry.file else entry.facts.numel
    return [size for size, _ in elements.most_common() if size > 1]


def smaller(size: int) -> Iterator[int]:
    """Yields sizes to try instead of a size, the smallest first."""
    options = [1, 2, 4, size // 4, size // 2]
    yield from sorted({other for other in options if 0 < other < size})


def shrink(graph: GraphIR, size: int, other: int, *, multiples: bool) -> GraphIR:
    """Replaces one size everywhere; with `multiples`, its multiples too.

    The lines lose their facts, which hold for the old sizes only.
    """

    def resized(number: int) -> int:
        if number == size:
            return other
        whole = multiples and number > size and number % size == 0
        return number // size * other if whole else number

    def resized_line(line: Line) -> Line:
        tree = ast.parse(line.expression, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) is int:
                node.value = resized(node.value)
        return replace(line, expression=ast.unparse(tree), facts=None)

    def resized_input(entry: Input) -> Input:
        shape = tuple(resized(number) for number in entry.facts.shape)
        if entry.file or shape == entry.facts.shape:
            return entry
        facts = replace(
            entry.facts,
            shape=shape,
            stride=_stride(shape, entry.facts),
            values=_within(entry.facts.values, size, other),
        )
        return replace(entry, facts=facts, storage="", offset=0)

    return replace(
        graph,
        inputs=tuple(
            _indexing(resized_input(entry), size, other) for entry in graph.inputs
        ),
        lines=tuple(resized_line(line) for line in graph.lines),
        functions=tuple(
            replace(inner, lines=tuple(resized_line(line) for line in inner.lines))
            for inner in graph.functions
        ),
    )


def _stride(shape: tuple[int, ...], before: TensorFacts) -> tuple[int, ...]:
    """Returns dense strides in the same order; expanded dimensions stay expanded."""
    order = sorted(range(len(shape)), key=lambda at: -before.stride[at])
    dense = contiguous(1 if before.stride[at] == 0 else shape[at] for at in order)
    strides = dict(zip(order, dense, strict=True))
    return tuple(strides[at] if before.stride[at] else 0 for at in range(len(shape)))


def _indexing(entry: Input, size: int, other: int) -> Input:
    """Keeps integers that may index a dimension below its new size."""
    values = _within(entry.facts.values, size, other)
    if entry.file or values == entry.facts.values:
        return entry
    return replace(entry, facts=replace(entry.facts, values=values))


def _within(values: Values | None, size: int, other: int) -> Values | None:
    if values is None or values.kind != "whole" or values.numbers[1] >= size:
        return values
    low, high = (min(number, other - 1) for number in values.numbers)
    return Values("fill", (low,)) if low == high else Values("whole", (low, high))
