"""What can be read off live objects: their source, their files, their plain values."""

from __future__ import annotations

import ast
import enum
import inspect
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


def is_foreign(file: str) -> bool:
    """Whether code is of the user or a library, and so has to be written down."""
    return whose(file) in {"user", "library"}


def spoken(code: types.CodeType) -> set[str]:
    """Names and texts of a code object, and of those inside it."""
    found = set(code.co_names) | {c for c in code.co_consts if isinstance(c, str)}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= spoken(inner)
    return found


def plain(thing: Any) -> str | None:
    """What Python or torch writes of a value is its source; None for others."""
    if thing is None or type(thing) in (
        bool,
        int,
        str,
        bytes,
        complex,
        types.EllipsisType,
    ):
        return repr(thing)
    if type(thing) is float:
        return repr(thing) if thing - thing == 0 else f"float('{thing}')"
    if isinstance(thing, torch.dtype | torch.layout | torch.memory_format):
        return repr(thing)
    if isinstance(thing, torch.device):
        return f"torch.device({thing.type!r})"
    if isinstance(thing, torch.Size):
        return f"torch.Size({list(thing)})"
    if isinstance(thing, enum.Enum) and whose(file_of(type(thing))) == "user":
        return None
    return (
        f"slice({thing.start}, {thing.stop}, {thing.step})"
        if type(thing) is slice
        else None
    )


def parsed(code: types.CodeType) -> _Definition:
    """The definition of a code object, without annotations and foreign decorators."""
    try:
        text = textwrap.dedent(inspect.getsource(code))
        tree = without_annotations(ast.parse(text))
    except (OSError, SyntaxError, TypeError) as error:
        raise Unsuitable(f"no source of {code.co_name}: {error}") from None
    node = tree.body[0] if tree.body else None
    if not isinstance(node, _Definition):
        raise Unsuitable(f"{code.co_name} is no function with a name")
    node.decorator_list = [
        d
        for d in node.decorator_list
        if ast.unparse(d).partition(".")[0].partition("(")[0] in _DECORATORS
    ]
    return node


def file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or "/lib/python3.11/builtins"
