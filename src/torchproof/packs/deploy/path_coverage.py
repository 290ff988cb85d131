"""Records the path of a call through the model's code: lines, and values of tensors.

A value that Python reads from a tensor controls a branch, a loop or a constant. A trace
keeps the value of the traced call.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torchproof.records import Frame, blame
from torchproof.targets import stack
from torchproof.torch_private import ScalarReads

At = tuple[str, int]  # file and line


@dataclass
class ExecutionPath:
    """The lines that ran, and the values read from tensors at each line, in order."""

    lines: set[At] = field(default_factory=set)
    values: dict[At, list[Any]] = field(default_factory=dict)

    def note(self, value: Any) -> None:
        frame = blame.place_of(_without_torch(stack())).frame
        if frame is not None:
            self.values.setdefault((frame.file, frame.line), []).append(value)


def _without_torch(frames: tuple[Frame, ...]) -> list[Frame]:
    return [f for f in frames if blame.whose(f.file) in ("user", "library")]


@contextmanager
def record_path() -> Iterator[ExecutionPath]:
    """Record what runs in the block; a line in a loop counts once."""
    path = ExecutionPath()

    def line(frame: FrameType, event: str, _: Any) -> Any:
        path.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        owner = blame.whose(frame.f_code.co_filename)
        return line if owner in ("user", "library") else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        with ScalarReads(path.note):
            yield path
    finally:
        sys.settrace(before)


def only_checks(at: At) -> bool:
    """Whether the value read at this line only decides whether to raise an error."""
    for node in _statements(at):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.If) and not node.orelse:
            return all(isinstance(part, ast.Raise) for part in node.body)
    return False


def _statements(at: At) -> Iterator[ast.AST]:
    """The statements whose condition is on this line, the innermost first."""
    try:
        tree = ast.parse("\n".join(line.rstrip("\n") for line in blame.lines_of(at[0])))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    statements = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert | ast.If) and _holds(node, at[1])
    ]
    yield from sorted(statements, key=lambda node: -node.lineno)


def _holds(node: ast.Assert | ast.If, line: int) -> bool:
    return node.lineno <= line <= (node.test.end_lineno or node.lineno)


def condition(at: At) -> str:
    """The condition on this line as written, else the whole line."""
    for node in _statements(at):
        if isinstance(node, ast.If):
            return f"if {ast.unparse(node.test)}"
    return blame.source_line(*at).strip()


def describe(at: At) -> str:
    return f"{blame.shown(at[0])}:{at[1]}: {condition(at)}"
