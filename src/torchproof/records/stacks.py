"""Parses formatted Python stacks, and splits them where a compiled region begins.

A compiled region begins at a call of a compiled callable. The frames above that call
are callers: they run eagerly, so the compiler's actions are not attributed to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from torchproof.records.frame import Frame, first_expression, without_comment

_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+?)\s*$'
)

_EVAL_FRAME = "torch/_dynamo/eval_frame.py"
_RESUME = re.compile(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")


class Region(NamedTuple):
    """A stack, split at the call that enters the compiled region."""

    callers: tuple[Frame, ...]
    inside: tuple[Frame, ...]


def split_region(stack: Sequence[Frame]) -> Region | None:
    """Splits a stack; None if it has no call of a compiled callable.

    The outermost of nested compiled calls counts, unless a function marked with
    torch.compiler.disable lies in between: it and its callees run eagerly.
    """
    torch_own = [
        not f.file or Path(f.file).as_posix().endswith(_EVAL_FRAME) for f in stack
    ]
    disabled = [i for i, f in enumerate(stack) if torch_own[i] and f.function == "_fn"]
    for i in range(disabled[-1] if disabled else 0, len(stack)):
        if torch_own[i] and stack[i].function == "compile_wrapper":
            return Region(tuple(stack[:i]), tuple(stack[i + 1 :]))
    return None


def inside_region(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of a live stack inside the compiled region, else all of them."""
    region = split_region(stack)
    return tuple(stack) if region is None else region.inside


def starts_with(frames: Sequence[Frame], callers: Iterable[Frame]) -> int:
    """The number of leading frames that are the callers; 0 if they are absent.

    Torch omits its own eval_frame.py from formatted stacks. A trace shows only the
    innermost of consecutive functions with the same name.
    """
    expected = [frame for frame in callers if "eval_frame" not in frame.file]
    names = [original_name(frame.function) for frame in expected]
    at = 0
    for number, frame in enumerate(expected):
        around = (
            *names[max(number - 1, 0) : number],
            *names[number + 1 : number + 2],
        )
        if at < len(frames) and _same(frames[at], frame):
            at += 1
        elif frame.file and number + 1 < len(expected) and names[number] not in around:
            return 0
    return at


def _same(one: Frame, other: Frame) -> bool:
    """Whether both frames are of the same line; a trace may lack the file name."""
    names = original_name(one.function), original_name(other.function)
    have_files = bool(one.file and other.file)
    return (
        names[0] == names[1]
        and one.line == other.line
        and (not have_files or one.file == other.file)
    )


def is_resumed(function: str) -> bool:
    """Whether it is a resume function, which Dynamo calls after a graph break."""
    return _RESUME.match(function) is not None


def resumed_at(function: str) -> int | None:
    """The line of the graph break before this resume function."""
    match = _RESUME.match(function)
    return int(match["line"]) if match else None


def original_name(function: str) -> str:
    """The user's name of a function, also for a resume function."""
    while match := _RESUME.match(function):
        function = match["name"]
    return function


def frames_in(text: str) -> tuple[Frame, ...]:
    """The frames of a formatted Python stack, with the underlined columns."""
    frames: list[Frame] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match is None:
            continue
        following = lines[number + 1] if number + 1 < len(lines) else ""
        code = "" if _FRAME.match(following) else following
        marks = lines[number + 2] if code and number + 2 < len(lines) else ""
        frames.append(
            Frame(
                file=match["file"],
                line=int(match["line"]),
                function=match["name"],
                code=code.strip(),
                columns=_columns(code, marks),
            )
        )
    return tuple(frames)


def _columns(code: str, marks: str) -> tuple[int, int] | None:
    """The columns that the marks below a line cover; Dynamo marks one too many."""
    if not marks.strip() or set(marks.strip()) - set("^~ "):
        return None
    indent = len(code) - len(code.lstrip())
    start = max(len(marks) - len(marks.lstrip()) - indent, 0)
    covered = code.strip()[start : len(marks.rstrip()) - indent].rstrip()
    covered = first_expression(without_comment(covered))
    return start, start + len(covered)
