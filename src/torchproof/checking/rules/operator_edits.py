"""Fake implementations of the custom operators that a program defines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from torchproof.checking.static import changes
from torchproof.checking.static.source import Source, walk
from torchproof.records import Remedy

# Methods that need the values of a tensor, and tensors that cannot be fake.
_OF_VALUES = {"numpy", "item", "tolist", "data_ptr", "cpu", "nonzero", "unique"}
_LONGEST = 8  # lines of an implementation that is written twice


def named_operator(said: str) -> str | None:
    """The operator `namespace::name` that torch names; None for its own."""
    named = re.search(r"(\w+)::(\w+)|(\w+)\.(\w+)(?=\.default\b)", said)
    if named is None or "aten" in named.groups():
        return None
    return "::".join(filter(None, named.groups()))


def register_fake(said: str) -> str:
    """How to give the operator that torch names a fake implementation."""
    name = named_operator(said)
    if name is None:
        return ""
    register = f'torch.library.register_fake("{name}")'
    return f"give the operator a fake implementation: {register}"


def fake_edit(said: str, files: Iterable[str]) -> Remedy | None:
    """Registers the operator's own code as its fake implementation.

    Where it consists of operations of torch, it runs on fake tensors too, and gives the
    shapes that the operator has.
    """
    name = named_operator(said)
    for source in filter(None, map(changes.source_of, files if name else ())):
        for node in source.tree.body:
            if isinstance(node, ast.FunctionDef) and _defines(node, name, source):
                return _with_fake(node, source) if _is_of_torch(node, source) else None
    return None


def _defines(node: ast.FunctionDef, name: str | None, source: Source) -> bool:
    return any(
        isinstance(each, ast.Call)
        and source.dotted(each.func) == "torch.library.custom_op"
        and each.args
        and isinstance(each.args[0], ast.Constant)
        and each.args[0].value == name
        for each in node.decorator_list
    )


def _is_of_torch(node: ast.FunctionDef, source: Source) -> bool:
    """Whether a function only computes with torch, whatever the values are."""
    inner = [each for line in node.body for each in walk(line)]
    branches = ast.If | ast.While | ast.Try | ast.With | ast.IfExp | ast.Assert
    return not any(isinstance(each, branches) for each in inner) and all(
        (source.dotted(each.func) or "").startswith("torch.")
        or (
            isinstance(each.func, ast.Attribute)
            and each.func.attr not in _OF_VALUES
            and not (source.dotted(each.func) or "").startswith(("numpy.", "math."))
        )
        for each in inner
        if isinstance(each, ast.Call)
    )


def _with_fake(node: ast.FunctionDef, source: Source) -> Remedy | None:
    own = changes.code(source, node)
    header = own[: own.index("(")]
    lines = own.splitlines()
    if len(node.decorator_list) != 1 or len(lines) > _LONGEST:
        return None
    fake = own.replace(header, "def _", 1)
    text = f"{own}\n\n\n@{node.name}.register_fake\n{fake}"
    title = f"register_fake: the code of `{node.name}` runs on fake tensors too"
    return changes.edit(title, source, {node: text})
