"""Sketches of smaller tensors."""

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
    """The sizes that tensors going in have, those of most elements first."""
    found: Counter[int] = Counter()
    for entry in graph.inputs:
        for size in {*entry.facts.shape}:
            found[size] += 0 if entry.file else entry.facts.numel
    return [size for size, _ in found.most_common() if size > 1]


def smaller(size: int) -> Iterator[int]:
    """What to try in place of a size, the smallest first."""
    tried = [1, 2, 4, size // 4, size // 2]
    yield from sorted({other for other in tried if 0 < other < size})


def shrunk(graph: GraphIR, size: int, other: int, *, multiples: bool) -> GraphIR:
    """With one size replaced wherever it stands, and its multiples too if asked for.

    What lines give is no longer known: it was seen with the sizes of before.
    """

    def told(number: int) -> int:
        if number == size:
            return other
        whole = multiples and number > size and number % size == 0
        return number // size * other if whole else number

    def line_with(line: Line) -> Line:
        tree = ast.parse(line.expression, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) is int:
                node.value = told(node.value)
        return replace(line, expression=ast.unparse(tree), facts=None)

    def input_with(entry: Input) -> Input:
        shape = tuple(told(number) for number in entry.facts.shape)
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
            _indexing(input_with(entry), size, other) for entry in graph.inputs
        ),
        lines=tuple(line_with(line) for line in graph.lines),
        functions=tuple(
            replace(inner, lines=tuple(line_with(line) for line in inner.lines))
            for inner in graph.functions
        ),
    )


def _stride(shape: tuple[int, ...], before: TensorFacts) -> tuple[int, ...]:
    """Dense strides in the order of before; what was expanded stays so."""
    order = sorted(range(len(shape)), key=lambda at: -before.stride[at])
    dense = contiguous(1 if before.stride[at] == 0 else shape[at] for at in order)
    found = dict(zip(order, dense, strict=True))
    return tuple(found[at] if before.stride[at] else 0 for at in range(len(shape)))


def _indexing(entry: Input, size: int, other: int) -> Input:
    """An input of whole numbers that count up to a size stays below it."""
    values = _within(entry.facts.values, size, other)
    if entry.file or values == entry.facts.values:
        return entry
    return replace(entry, facts=replace(entry.facts, values=values))


def _within(values: Values | None, size: int, other: int) -> Values | None:
    if values is None or values.kind != "whole" or values.numbers[1] >= size:
        return values
    low, high = (min(number, other - 1) for number in values.numbers)
    return Values("fill", (low,)) if low == high else Values("whole", (low, high))
