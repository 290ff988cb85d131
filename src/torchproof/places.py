"""Whose code a frame is, and which frame of a stack is the place to look at."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchproof.records import Frame, Owner

_PACKAGE = Path(__file__).parent.as_posix() + "/"
_INSTALLED = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+/|/python3\d+\.zip/")
_COMPILER = {"torch", "functorch", "triton", "torchgen"}
_RESUME = re.compile(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")


class Place(NamedTuple):
    """Where to look: a frame, whose code it is, and the library frame behind it."""

    frame: Frame | None
    owner: Owner | None
    library: Frame | None


@functools.lru_cache(maxsize=4096)
def whose(file: str) -> str:
    """user, library, torch, standard, generated or torchproof."""
    path = file.replace("\\", "/")
    if path.startswith("<") and not path.startswith("<ipython"):
        return "generated"
    if "/torchproof/workloads/" in path:
        return "user"
    if path.startswith(_PACKAGE) or "/site-packages/torchproof/" in path:
        return "torchproof"
    if installed := _INSTALLED.search(path):
        name = installed.group(1).removesuffix(".py")
        return "torch" if name in _COMPILER else "library"
    return "standard" if _STANDARD.search(path) else "user"


def place_of(frames: Sequence[Frame]) -> Place:
    """The innermost frame of the user's code, else of a library outside torch."""
    owners = [whose(frame.file) for frame in frames]
    library = next(
        (
            f
            for f, o in zip(reversed(frames), reversed(owners), strict=True)
            if o == "library"
        ),
        None,
    )
    for frame, owner in zip(reversed(frames), reversed(owners), strict=True):
        if owner == "user":
            behind = (
                library
                if library and frames.index(library) > frames.index(frame)
                else None
            )
            return Place(_located(frame), "user", behind)
    if library is not None:
        return Place(_located(library), "library", None)
    return Place(None, None, None)


def original_name(function: str) -> str:
    """The user's name of a function that Dynamo may have cut in two."""
    while match := _RESUME.match(function):
        function = match["name"]
    return function


def definition(function: Frame) -> Frame:
    """The `def` line of a compiled code object, past its decorators.

    A code object's first line is that of its decorators; a resume function's is the
    line it goes on at.
    """
    if _RESUME.match(function.function):
        return _located(function)
    lines = linecache.getlines(function.file)
    for offset, text in enumerate(lines[function.line - 1 : function.line + 20]):
        if re.match(r"\s*(async\s+def|def|class)\b", text) or "lambda" in text:
            line = function.line + offset
            return Frame(function.file, line, function.function, text.strip())
    return _located(function)


def qualified_name(frame: Frame) -> str:
    """`Rotary.forward` rather than `forward`, read from the file if it can be."""
    name = original_name(frame.function)
    scopes = [s for s in _scopes(frame.file) if s[0] <= frame.line <= s[1]]
    named = [label for _, _, label in sorted(scopes)]
    if named and (named[-1] == name or name.startswith("<")):
        return ".".join(named)
    return name


def source_line(file: str, line: int) -> str:
    return linecache.getline(file, line).rstrip("\n")


@functools.lru_cache(maxsize=256)
def _scopes(file: str) -> tuple[tuple[int, int, str], ...]:
    """(first line, last line, name) of each class and function in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    wanted = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, wanted)
    )


def _located(frame: Frame) -> Frame:
    """The frame with its source text, where the record did not carry it."""
    if frame.code:
        return frame
    text = source_line(frame.file, frame.line).strip()
    return Frame(frame.file, frame.line, frame.function, text, None)
