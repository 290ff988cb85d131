"""Reads source code, files and plain values from live objects."""

from __future__ import annotations

import ast
import enum
import inspect
import math
import sys
import textwrap
import types
from typing import Any

import torch

from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.tree_shaking import without_annotations
from torchproof.records import whose

_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_DECORATORS = ("torch", "staticmethod", "classmethod", "property", "contextlib")


def is_extracted(file: str) -> bool:
    """Whether code belongs to the user or a library, and so has to be extracted."""
    return whose(file) in {"user", "library"}


def words_in(code: types.CodeType) -> set[str]:
    """Returns names and strings of a code object and of nested ones."""
    words = set(code.co_names) | {c for c in code.co_consts if isinstance(c, str)}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            words |= words_in(inner)
    return words


def literal(value: Any) -> str | None:
    """Returns the source of a plain value of Python or torch; None for others."""
    if value is None or type(value) in (
        bool,
        int,
        str,
        bytes,
        complex,
        types.EllipsisType,
    ):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({value.type!r})"
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)})"
    if isinstance(value, enum.Enum) and whose(file_of(type(value))) == "user":
        return None
    if type(value) is slice:
        return f"slice({value.start}, {value.stop}, {value.step})"
    return None


def definition_of(code: types.CodeType) -> _Definition:
    """Parses the definition of a code object; drops annotations and most decorators."""
    try:
        text = textwrap.dedent(inspect.getsource(code))
        tree = without_annotations(ast.parse(text))
    except (OSError, SyntaxError, TypeError) as error:
        raise Unsuitable(f"no source for {code.co_name}: {error}") from None
    node = tree.body[0] if tree.body else None
    if not isinstance(node, _Definition):
        raise Unsuitable(f"{code.co_name} is not a named function")
    node.decorator_list = [
        d
        for d in node.decorator_list
        if ast.unparse(d).partition(".")[0].partition("(")[0] in _DECORATORS
    ]
    return node


def file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or "/lib/python3.11/builtins"
