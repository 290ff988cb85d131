"""Finds the owner of a stack frame, and the frame of a stack to report."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torchproof.records import cells
from torchproof.records.files import MOST_SOURCE_BYTES, open_regular
from torchproof.records.frame import Frame, Owner
from torchproof.records.stacks import is_resumed as is_resumed
from torchproof.records.stacks import original_name as original_name
from torchproof.records.stacks import resumed_at as resumed_at

_PACKAGE = Path(__file__).parent.parent.as_posix() + "/"
_INSTALLED = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+/|/python3\d+\.zip/")
# Code that Inductor writes, in whichever folder: ab/cab..., a hash.
_INDUCTOR = re.compile(r"/([a-z2-7]{2})/c\1[a-z2-7]{49}\.py$")
_SOURCE = (".py", ".pyw")
_COMPILER = {"torch", "functorch", "triton", "torchgen"}
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Place(NamedTuple):
    """A frame to report, the owner of its code, and the library frame behind it."""

    frame: Frame | None
    owner: Owner | None
    library: Frame | None


@functools.lru_cache(maxsize=4096)
def whose(file: str) -> str:
    """The owner of a file: user, library, torch, standard, generated or torchproof."""
    path = file.replace("\\", "/")
    in_memory = path.startswith("<") and not path.startswith("<ipython")
    if in_memory or _INDUCTOR.search(path):
        return "generated"
    if "/torchproof/targets/workloads/" in path:
        return "user"
    if path.startswith(_PACKAGE) or "/site-packages/torchproof/" in path:
        return "torchproof"
    if installed := _INSTALLED.search(path):
        name = installed.group(1).removesuffix(".py")
        return "torch" if name in _COMPILER else "library"
    return "standard" if _STANDARD.search(path) else "user"


def is_own(file: str) -> bool:
    """Whether a file is the user's own: no installed package, and not torchproof."""
    try:
        real = os.path.realpath(file)
    except ValueError:  # no file can have this name
        return False
    return whose(file) == whose(real) == "user" and not real.startswith(_PACKAGE)


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


def definition(function: Frame) -> Frame:
    """The `def` line of a compiled code object, past its decorators.

    The first line of a code object is its first decorator; for a resume function, it is
    the line where it resumes.
    """
    if is_resumed(function.function) or function.function in COMPREHENSIONS:
        return _located(function)
    lines = lines_of(function.file)
    for offset, text in enumerate(lines[function.line - 1 : function.line + 20]):
        if re.match(r"\s*(async\s+def|def|class)\b", text) or "lambda" in text:
            line = function.line + offset
            return Frame(function.file, line, function.function, text.strip())
    return _located(function)


def qualified_name(frame: Frame) -> str:
    """`Rotary.forward` rather than `forward`, if the file can be read."""
    name = original_name(frame.function)
    scopes = [s for s in _scopes(frame.file) if s[0] <= frame.line <= s[1]]
    named = [label for _, _, label in sorted(scopes)]
    if name == "<lambda>":
        return ".".join([*named, name])
    if named and (named[-1] == name or name in COMPREHENSIONS):
        return ".".join(named)
    return name


def plain_name(name: str) -> str:
    """A code object's qualified name as the source has it: `Net.forward`.

    A comprehension gets the name of its function, and a resume function the name of the
    original function.
    """
    words = [w for w in name.split(".") if w != "<locals>"]
    while len(words) > 1 and words[-1] in COMPREHENSIONS:
        words.pop()
    return ".".join([*words[:-1], original_name(words[-1])])


def package_of(file: str) -> str | None:
    """The installed package that a file belongs to."""
    installed = _INSTALLED.search(file.replace("\\", "/"))
    return installed[1].removesuffix(".py") if installed else None


def module_of(file: str) -> str | None:
    """The import name of a file of an installed package."""
    path = file.replace("\\", "/")
    if (installed := _INSTALLED.search(path)) is None or not path.endswith(".py"):
        return None
    words = path[installed.start(1) :].removesuffix(".py").split("/")
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code."""
    user_frames = (f for f in reversed(frames) if whose(f.file) == "user")
    return next((_located(frame) for frame in user_frames), None)


def shown(file: str) -> str:
    """Relative to the working directory if the file is below it, else unchanged."""
    return file.removeprefix(os.getcwd() + os.sep)


def shown_briefly(file: str) -> str:
    """As `shown`, but a file of an installed package begins with the package."""
    installed = _INSTALLED.search(file.replace("\\", "/"))
    return file[installed.start(1) :] if installed else shown(file)


def diff_names(files: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The line above a diff, and how it names these files: never by absolute paths.

    Files outside the working directory are named from the folder they have in common,
    and the line says to apply the diff there.
    """
    names = {file: cells.name_in(file) or shown_briefly(file) for file in files}
    if not any(map(os.path.isabs, names.values())):
        return "", names
    own = [f for f, name in names.items() if os.path.isabs(f) and name == shown(f)]
    folder = os.path.commonpath([os.path.dirname(file) for file in own])
    names |= {file: os.path.relpath(file, folder) for file in own}
    return f"apply in {folder}:\n", names


def source_line(file: str, line: int) -> str:
    lines = lines_of(file)
    return lines[line - 1].rstrip("\n") if 1 <= line <= len(lines) else ""


def lines_of(file: str) -> list[str]:
    """The lines of a source file, or of code that was registered under this name.

    Empty if the file cannot be read for any reason: a name from a trace may be that of
    a FIFO, of a file with an unknown `coding:`, or of one that is no Python source and
    whose lines do not belong in a report.
    """
    try:
        if file not in linecache.cache:
            if not file.endswith(_SOURCE):
                return []
            if os.path.exists(file):
                open_regular(file, MOST_SOURCE_BYTES).close()
        return linecache.getlines(file)
    except Exception:  # a codec may raise anything
        return []


def around(file: str, line: int, reach: int = 3) -> tuple[tuple[str, ...], int | None]:
    """The lines around a line, within its function, and the number of the first."""
    lines = lines_of(file)
    if not 1 <= line <= len(lines):
        return (), None
    first, last = _innermost(file).get(line, (1, len(lines)))
    start, end = max(line - reach, first), min(line + reach, last)
    return tuple(text.rstrip("\r\n") for text in lines[start - 1 : end]), start


def first_line(file: str, name: str, line: int) -> int | None:
    """The first line of the function of this name around a line, with decorators."""
    scopes = _functions(file).get(name, ())
    around = [first for first, last in scopes if first <= line <= last]
    return max(around, default=None)


def is_frame_of(frame: Frame, function: Frame | None) -> bool:
    """Whether a frame of a formatted stack runs this code object, or one it resumes.

    A formatted stack has the original names of resume functions.
    """
    if function is None:
        return False
    name = original_name(function.function)
    if (frame.file, original_name(frame.function)) != (function.file, name):
        return False
    if is_resumed(function.function):
        return True
    first = first_line(frame.file, name, frame.line)
    return first is None or first == function.line


def statement(file: str, line: int) -> tuple[int, int]:
    """The first and last line of the statement at a line, excluding its body."""
    inside = [s for s in _statements(file) if s[0] <= line <= s[1]]
    return max(inside, default=(line, line))


def forget() -> None:
    """Clears the caches of source files, which may have changed."""
    linecache.checkcache()
    _PARSED.clear()
    _parsed.cache_clear()
    _scopes.cache_clear()
    _innermost.cache_clear()
    _statements.cache_clear()
    _functions.cache_clear()


@functools.lru_cache(maxsize=256)
def _statements(file: str) -> tuple[tuple[int, int], ...]:
    """(first line, last line) of each statement, excluding its body."""
    statements = []
    for node in _every_statement(tree_of(file)):
        body = getattr(node, "body", None)
        end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        statements.append((node.lineno, max(node.lineno, end)))
    return tuple(statements)


def _every_statement(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a file, those around others first."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())


# The trees of the files that are being read, which need not be parsed again.
_PARSED: dict[str, ast.Module] = {}


@contextlib.contextmanager
def parsed(trees: Mapping[str, ast.Module]) -> Iterator[None]:
    """Meanwhile, `tree_of` these files is what the caller has parsed."""
    _PARSED.update(trees)
    try:
        yield
    finally:
        for file in trees:
            _PARSED.pop(file, None)


def tree_of(file: str) -> ast.Module:
    return _PARSED.get(file) or _parsed(file)


@functools.lru_cache(maxsize=256)
def _parsed(file: str) -> ast.Module:
    try:
        return ast.parse("".join(lines_of(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


@functools.lru_cache(maxsize=256)
def _scopes(file: str) -> tuple[tuple[int, int, str], ...]:
    """(first line, last line, name) of each class and function in a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in _every_statement(tree_of(file))
        if isinstance(node, kinds)
    )


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> dict[str, list[tuple[int, int]]]:
    """First and last lines of the functions of each name, with their decorators."""
    lines: dict[str, list[tuple[int, int]]] = {}
    for node in _every_statement(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or node.lineno
            lines.setdefault(node.name, []).append((first, last))
    return lines


@functools.lru_cache(maxsize=256)
def _innermost(file: str) -> dict[int, tuple[int, int]]:
    """First and last line of the innermost class or function of each line."""
    return {
        line: (first, last)
        for first, last, _ in sorted(_scopes(file))
        for line in range(first, last + 1)
    }


def _located(frame: Frame) -> Frame:
    """The frame with its source text, read from the file if it is missing."""
    if frame.code:
        return frame
    text = source_line(frame.file, frame.line).strip()
    return Frame(
        file=frame.file,
        line=frame.line,
        function=frame.function,
        code=text,
        columns=None,
    )
