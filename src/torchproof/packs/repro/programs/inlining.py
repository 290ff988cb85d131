"""Edits that replace names by their values, which saves names and lines."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torchproof.packs.repro.programs.edits import Edit, Nodes
from torchproof.packs.repro.programs.scopes import parameters

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Literal = ast.Constant | ast.UnaryOp


def default_parameters(tree: ast.Module) -> list[Edit]:
    """Replaces a parameter by its literal default, and removes it from calls."""
    edits = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, _Function):
            edits += [
                _use_default(number, name)
                for name, default in _defaults(node.args)
                if isinstance(default, _Literal)
            ]
    return edits


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    optional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    for argument, default in zip(optional, arguments.defaults, strict=True):
        yield argument.arg, default
    for argument, other in zip(
        arguments.kwonlyargs, arguments.kw_defaults, strict=True
    ):
        if other is not None:
            yield argument.arg, other


def _use_default(number: int, name: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        value = dict(_defaults(node.args))[name]
        _remove_parameter(node.args, name)
        node.body = [_substitute(each, {name: value}) for each in node.body]
        for call in ast.walk(nodes[0]):
            if isinstance(call, ast.Call):
                call.keywords = [k for k in call.keywords if k.arg != name]

    return edit


def _remove_parameter(arguments: ast.arguments, name: str) -> None:
    for place, argument in enumerate(arguments.args):
        if argument.arg == name:
            required = len(arguments.args) - len(arguments.defaults)
            del arguments.defaults[place - required]
            del arguments.args[place]
            return
    place = [a.arg for a in arguments.kwonlyargs].index(name)
    del arguments.kwonlyargs[place]
    del arguments.kw_defaults[place]


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._values.get(node.id)
        if value is None or not isinstance(node.ctx, ast.Load):
            return node
        return copy.deepcopy(value)


def _substitute(node: Any, values: Mapping[str, ast.expr]) -> Any:
    return _Substitution(values).visit(node)


def inlined_names(tree: ast.Module) -> list[Edit]:
    """Replaces a name that is assigned once and read once by its value."""
    stores: dict[str, int] = {}
    loads: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            count = loads if isinstance(node.ctx, ast.Load) else stores
            count[node.id] = count.get(node.id, 0) + 1
        elif isinstance(node, ast.arg):
            stores[node.arg] = stores.get(node.arg, 0) + 1
    edits = []
    for number, node in enumerate(ast.walk(tree)):
        for place, statement in enumerate(_body(node)):
            name = _single_name(statement)
            if name and stores.get(name) == 1 and loads.get(name) == 1:
                edits.append(_inline_name(number, place, name))
    return edits


def _body(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def _single_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


def _inline_name(number: int, place: int, name: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        owner = nodes[number]
        statement = _body(owner).pop(place)
        assert isinstance(statement, ast.Assign)
        _substitute(nodes[0], {name: statement.value})

    return edit


def evaluated_lookups(tree: ast.Module) -> list[Edit]:
    """Replaces `{"a": x}["a"]` and `Size(a=x).a` by `x`, and calls by their result."""
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[0], ast.Return)
    }
    order = {id(node): number for number, node in enumerate(ast.walk(tree))}
    edits = []
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            values = value if isinstance(value, list) else [value]
            for place, node in enumerate(values):
                other = _looked_up(node, functions)
                if other is not None:
                    at = place if isinstance(value, list) else None
                    edits.append(_replace(order[id(parent)], field, at, other))
    return edits


def _looked_up(
    node: object, functions: Mapping[str, ast.FunctionDef]
) -> ast.expr | None:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            if key is not None and ast.unparse(key) == ast.unparse(node.slice):
                return value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        for keyword in node.value.keywords:
            if keyword.arg == node.attr:
                return keyword.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function = functions.get(node.func.id)
        return None if function is None else _returned(node, function)
    return None


def _returned(node: ast.Call, function: ast.FunctionDef) -> ast.expr | None:
    names = [argument.arg for argument in parameters(function)]
    statement = function.body[0]
    simple = not (function.args.vararg or function.args.kwarg)
    if not simple or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    values = dict(_defaults(function.args)) | dict(zip(names, node.args, strict=False))
    values |= {k.arg: k.value for k in node.keywords if k.arg}
    if not isinstance(statement, ast.Return) or statement.value is None:
        return None
    if set(values) != set(names):
        return None
    returned: ast.expr = _substitute(copy.deepcopy(statement.value), values)
    return returned


def _replace(number: int, field: str, at: int | None, other: ast.expr) -> Edit:
    def edit(nodes: Nodes) -> None:
        if at is None:
            setattr(nodes[number], field, copy.deepcopy(other))
        else:
            getattr(nodes[number], field)[at] = copy.deepcopy(other)

    return edit


def flattened_bases(tree: ast.Module) -> list[Edit]:
    """Replaces a base class by its own bases, or removes it."""
    bases = {n.name: n.bases for n in tree.body if isinstance(n, ast.ClassDef)}
    edits = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            for place, base in enumerate(node.bases):
                deeper = bases.get(base.id, []) if isinstance(base, ast.Name) else []
                if deeper or len(node.bases) > 1:
                    edits.append(_replace_base(number, place, deeper))
    return edits


def _replace_base(number: int, place: int, deeper: list[ast.expr]) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, ast.ClassDef)
        node.bases[place : place + 1] = copy.deepcopy(deeper)

    return edit
