"""Edits that put what a name stands for in its place: fewer names, fewer lines."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torchproof.packs.repro.programs.edits import Edit, Nodes
from torchproof.packs.repro.programs.scopes import parameters

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Literal = ast.Constant | ast.UnaryOp


def settled(tree: ast.Module) -> list[Edit]:
    """A parameter with a plain default as that default; nobody hands it over."""
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, _Function):
            found += [
                _settling(number, name)
                for name, default in _defaults(node.args)
                if isinstance(default, _Literal)
            ]
    return found


def _defaults(given: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    late = given.args[len(given.args) - len(given.defaults) :]
    for argument, default in zip(late, given.defaults, strict=True):
        yield argument.arg, default
    for argument, other in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if other is not None:
            yield argument.arg, other


def _settling(number: int, name: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        value = dict(_defaults(node.args))[name]
        _forget_parameter(node.args, name)
        node.body = [_substituted(each, {name: value}) for each in node.body]
        for call in ast.walk(nodes[0]):
            if isinstance(call, ast.Call):
                call.keywords = [k for k in call.keywords if k.arg != name]

    return edit


def _forget_parameter(given: ast.arguments, name: str) -> None:
    for place, argument in enumerate(given.args):
        if argument.arg == name:
            del given.defaults[place - len(given.args) + len(given.defaults)]
            del given.args[place]
            return
    place = [a.arg for a in given.kwonlyargs].index(name)
    del given.kwonlyargs[place], given.kw_defaults[place]


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._values.get(node.id)
        if value is None or not isinstance(node.ctx, ast.Load):
            return node
        return copy.deepcopy(value)


def _substituted(node: Any, values: Mapping[str, ast.expr]) -> Any:
    return _Substitution(values).visit(node)


def inlined(tree: ast.Module) -> list[Edit]:
    """A name that is given a value once and read once, as the value itself."""
    stores: dict[str, int] = {}
    loads: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            count = loads if isinstance(node.ctx, ast.Load) else stores
            count[node.id] = count.get(node.id, 0) + 1
        elif isinstance(node, ast.arg):
            stores[node.arg] = stores.get(node.arg, 0) + 1
    found = []
    for number, node in enumerate(ast.walk(tree)):
        for place, statement in enumerate(_body(node)):
            name = _single_name(statement)
            if name and stores.get(name) == 1 and loads.get(name) == 1:
                found.append(_inlining(number, place, name))
    return found


def _body(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def _single_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


def _inlining(number: int, place: int, name: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        owner = nodes[number]
        statement = _body(owner).pop(place)
        assert isinstance(statement, ast.Assign)
        _substituted(nodes[0], {name: statement.value})

    return edit


def looked_up(tree: ast.Module) -> list[Edit]:
    """`{"a": x}["a"]` and `Size(a=x).a` as `x`; a call as what its function returns."""
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[0], ast.Return)
    }
    order = {id(node): number for number, node in enumerate(ast.walk(tree))}
    found = []
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            values = value if isinstance(value, list) else [value]
            for place, node in enumerate(values):
                other = _meaning(node, functions)
                if other is not None:
                    at = place if isinstance(value, list) else None
                    found.append(_replacing(order[id(parent)], field, at, other))
    return found


def _meaning(node: object, functions: Mapping[str, ast.FunctionDef]) -> ast.expr | None:
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
    given = dict(_defaults(function.args)) | dict(zip(names, node.args, strict=False))
    given |= {k.arg: k.value for k in node.keywords if k.arg}
    if not isinstance(statement, ast.Return) or statement.value is None:
        return None
    if set(given) != set(names):
        return None
    answer: ast.expr = _substituted(copy.deepcopy(statement.value), given)
    return answer


def _replacing(number: int, field: str, at: int | None, other: ast.expr) -> Edit:
    def edit(nodes: Nodes) -> None:
        if at is None:
            setattr(nodes[number], field, copy.deepcopy(other))
        else:
            getattr(nodes[number], field)[at] = copy.deepcopy(other)

    return edit


def flattened(tree: ast.Module) -> list[Edit]:
    """A class with the bases of its base, or with none."""
    bases = {n.name: n.bases for n in tree.body if isinstance(n, ast.ClassDef)}
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            for place, base in enumerate(node.bases):
                deeper = bases.get(base.id, []) if isinstance(base, ast.Name) else []
                if deeper or len(node.bases) > 1:
                    found.append(_rebased(number, place, deeper))
    return found


def _rebased(number: int, place: int, deeper: list[ast.expr]) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, ast.ClassDef)
        node.bases[place : place + 1] = copy.deepcopy(deeper)

    return edit
