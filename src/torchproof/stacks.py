"""Reads a Python stack from its formatted text, with what each line underlines."""

from __future__ import annotations

import re

from torchproof.records import Frame

_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+?)\s*$'
)


def frames_in(text: str) -> tuple[Frame, ...]:
    """The frames of a formatted Python stack, with what each line underlines."""
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
                match["file"],
                int(match["line"]),
                match["name"],
                code.strip(),
                _columns(code, marks),
            )
        )
    return tuple(frames)


def _columns(code: str, marks: str) -> tuple[int, int] | None:
    """What the marks under a line cover. Dynamo marks one column too many."""
    if not marks.strip() or set(marks.strip()) - set("^~ "):
        return None
    indent = len(code) - len(code.lstrip())
    start = max(len(marks) - len(marks.lstrip()) - indent, 0)
    covered = code.strip()[start : len(marks.rstrip()) - indent].rstrip()
    if covered.endswith((":", ",", "=")):
        covered = covered[:-1].rstrip()
    for opening, closing in ("()", "[]", "{}"):
        if covered.endswith(closing) and covered.count(closing) > covered.count(
            opening
        ):
            covered = covered[:-1]
    return start, start + len(covered)
