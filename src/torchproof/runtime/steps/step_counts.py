"""Counts what steps do, separately for training and inference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchproof.records import JsonObject
from torchproof.torch_private import original_of

Shapes = tuple[tuple[int, ...], ...]
_MOST_SHAPES = 1000  # that are counted separately


@dataclass(frozen=True)
class CalledWith:
    """How often a callable was called with tensors of these shapes."""

    name: str
    shapes: str  # "64x32x768 64"
    calls: int

    def __str__(self) -> str:
        return f"{self.name} {self.shapes}"


@dataclass(frozen=True)
class Counts:
    """The counts of one step, or of several.

    `reentries` are calls of a function whose earlier call has a pending backward.
    `marks` includes those that other code made inside a step. `marks_left_out` were not
    made because another thread was inside a step.
    """

    steps: int
    calls: int
    reentries: int
    marks: int
    marks_left_out: int
    clones: int
    bytes_cloned: int
    called_with: tuple[CalledWith, ...]


@dataclass(frozen=True)
class Stats:
    """The counts of all ended steps, by whether their outputs required gradients."""

    training: Counts
    inference: Counts

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        rows = [_HEADS, *_rows("training", self.training)]
        rows += _rows("inference", self.inference)
        first = max(len(row[0]) for row in rows)
        return "\n".join(
            row[0].ljust(first) + "".join(cell.rjust(13) for cell in row[1:])
            for row in rows
        )


_COLUMNS = ("steps", "calls", "reentries", "marks", "clones", "bytes_cloned")
_HEADS = ["", *(name.replace("_", " ") for name in _COLUMNS)]


def _rows(kind: str, counts: Counts) -> list[list[str]]:
    """One row for all steps, and one for each callable and its shapes."""
    called = [["  " + str(each), "", f"{each.calls:,}"] for each in counts.called_with]
    return [[kind, *(f"{getattr(counts, name):,}" for name in _COLUMNS)], *called]


_COUNTED = ("steps", "reentries", "marks", "marks_left_out", "clones", "bytes_cloned")


class Tally:
    """Mutable counts. Every step makes one, so it must be cheap."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        self.reentries = self.marks = self.marks_left_out = 0
        self.clones = self.bytes_cloned = 0
        self.called: dict[tuple[str, Shapes | None], int] = {}
        # Calls of an open step; `add` makes their names, not each call.
        self.fns: dict[int, Callable[..., Any]] = {}
        self.calls: dict[tuple[int, Shapes], int] = {}

    def call(self, fn: Callable[..., Any], inputs: Iterable[Tensor]) -> None:
        self.fns[id(fn)] = fn
        row = id(fn), tuple([tuple(tensor.shape) for tensor in inputs])
        self.calls[row] = self.calls.get(row, 0) + 1

    def add(self, step: Tally) -> None:
        """Adds the counts of a step."""
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(step, name))
        for (key, shapes), calls in step.calls.items():
            row: tuple[str, Shapes | None] = name_of(step.fns[key]), shapes
            if len(self.called) >= _MOST_SHAPES and row not in self.called:
                row = row[0], None
            self.called[row] = self.called.get(row, 0) + calls

    def counts(self) -> Counts:
        open_ = Tally()
        open_.add(self)
        called = self.called | open_.called
        return Counts(
            **{name: getattr(self, name) for name in _COUNTED},
            calls=sum(called.values()),
            called_with=tuple(
                CalledWith(name, _text(shapes), calls)
                for (name, shapes), calls in called.items()
            ),
        )


def name_of(fn: Any) -> str:
    """The class of a module, or the name of a function."""
    inner = original_of(fn)
    if isinstance(inner, nn.Module):
        return type(inner).__name__
    return getattr(inner, "__qualname__", type(inner).__name__)


def _text(shapes: Shapes | None) -> str:
    if shapes is None:
        return "(other shapes)"
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
