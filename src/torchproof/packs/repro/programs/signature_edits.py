"""Edits that remove parameters, shrink integers and promote a part to the whole."""

from __future__ import annotations

import ast

from torchproof.packs.repro.programs.edits import Edit, Nodes
from torchproof.packs.repro.programs.scopes import mentioned_names

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def unread_parameters(tree: ast.Module) -> list[Edit]:
    """Removes a parameter that its function does not read, and its arguments."""
    edits = []
    for number, node in enumerate(ast.walk(tree)):
        if not isinstance(node, _Function) or node.name in {"before_call", "run"}:
            continue
        used = {name for statement in node.body for name in mentioned_names(statement)}
        for place, argument in enumerate(node.args.args):
            if argument.arg not in used | {"self", "cls"}:
                edits.append(_remove_parameter(number, place, called=True))
                edits.append(_remove_parameter(number, place, called=False))
        for place, argument in enumerate(node.args.kwonlyargs):
            if argument.arg not in used:
                edits.append(_remove_keyword(number, place))
    return edits


def _remove_parameter(number: int, place: int, *, called: bool) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        arguments = node.args
        required = len(arguments.args) - len(arguments.defaults)
        if place >= required:
            del arguments.defaults[place - required]
        argument = arguments.args.pop(place)
        method = bool(arguments.args) and arguments.args[0].arg == "self"
        if called:
            name = _called_as(nodes[0], node)
            _remove_argument(nodes[0], name, argument.arg, place - method)

    return edit


def _called_as(tree: ast.AST, function: _Function) -> str:
    """Returns the name that calls use: for a constructor, that of its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and function in node.body:
            return node.name if function.name == "__init__" else function.name
    return function.name


def _remove_argument(tree: ast.AST, name: str, keyword: str, place: int) -> None:
    """Removes an argument from calls of the function and from the calls of `make`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called == name and len(node.args) > place:
                del node.args[place]
            node.keywords = [k for k in node.keywords if k.arg != keyword]
        if isinstance(node, ast.List | ast.ListComp):
            inner = node.elts if isinstance(node, ast.List) else [node.elt]
            for call in inner:
                if isinstance(call, ast.Tuple) and len(call.elts) > place:
                    del call.elts[place]


def _remove_keyword(number: int, place: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        name = node.args.kwonlyargs.pop(place).arg
        del node.args.kw_defaults[place]
        for call in ast.walk(nodes[0]):
            if isinstance(call, ast.Call):
                call.keywords = [k for k in call.keywords if k.arg != name]

    return edit


def smaller_integers(tree: ast.Module) -> list[Edit]:
    """Replaces an integer by smaller ones: all equal ones at once, then each."""
    numbers = [
        (number, node.value)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 2
    ]
    edits: list[Edit] = []
    for value in sorted({value for _, value in numbers}, reverse=True):
        where = [number for number, other in numbers if other == value]
        smaller = dict.fromkeys(
            s for s in (2, 3, value // 4, value // 2) if 1 < s < value
        )
        edits += [_set_value(where, other) for other in smaller]
        if len(where) > 1:
            edits += [_set_value([one], 2) for one in where]
    return edits


def _set_value(where: list[int], value: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        for number in where:
            nodes[number].value = value  # type: ignore[attr-defined]

    return edit


def promoted_parts(tree: ast.Module) -> list[Edit]:
    """Returns an object that the program builds inside as the result of `make`."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    instances = {
        ast.unparse(node): node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in classes
    }
    return [
        _promote(number, source)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, ast.FunctionDef) and node.name == "make"
        for source in instances
    ]


def _promote(number: int, source: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        for node in ast.walk(nodes[number]):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                node.value.elts[0] = ast.parse(source, mode="eval").body

    return edit
