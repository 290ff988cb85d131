"""Edits of what functions take and of how large things are."""

from __future__ import annotations

import ast

from torchproof.packs.repro.programs.edits import Edit, Nodes
from torchproof.packs.repro.programs.scopes import spelled

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def signatures(tree: ast.Module) -> list[Edit]:
    """A parameter that its function does not read, and what is handed over for it."""
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if not isinstance(node, _Function) or node.name in {"before_call", "run"}:
            continue
        used = {name for statement in node.body for name in spelled(statement)}
        for place, argument in enumerate(node.args.args):
            if argument.arg not in used | {"self", "cls"}:
                found.append(_fewer(number, place, called=True))
                found.append(_fewer(number, place, called=False))
        for place, argument in enumerate(node.args.kwonlyargs):
            if argument.arg not in used:
                found.append(_fewer_keywords(number, place))
    return found


def _fewer(number: int, place: int, *, called: bool) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        given = node.args
        left = len(given.args) - len(given.defaults)
        if place >= left:
            del given.defaults[place - left]
        argument = given.args.pop(place)
        method = bool(given.args) and given.args[0].arg == "self"
        if called:
            name = _called_as(nodes[0], node)
            _hand_over_less(nodes[0], name, argument.arg, place - method)

    return edit


def _called_as(tree: ast.AST, function: _Function) -> str:
    """A constructor is called by the name of its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and function in node.body:
            return node.name if function.name == "__init__" else function.name
    return function.name


def _hand_over_less(tree: ast.AST, name: str, keyword: str, place: int) -> None:
    """Calls that spell the function; for `forward` and what make returns, the calls."""
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


def _fewer_keywords(number: int, place: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        name = node.args.kwonlyargs.pop(place).arg
        del node.args.kw_defaults[place]
        for call in ast.walk(nodes[0]):
            if isinstance(call, ast.Call):
                call.keywords = [k for k in call.keywords if k.arg != name]

    return edit


def sizes(tree: ast.Module) -> list[Edit]:
    """Smaller integers: everywhere the same one at once, then one at a time."""
    numbers = [
        (number, node.value)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 2
    ]
    found: list[Edit] = []
    for value in sorted({value for _, value in numbers}, reverse=True):
        where = [number for number, other in numbers if other == value]
        smaller = dict.fromkeys(
            s for s in (2, 3, value // 4, value // 2) if 1 < s < value
        )
        found += [_sized(where, other) for other in smaller]
        if len(where) > 1:
            found += [_sized([one], 2) for one in where]
    return found


def _sized(where: list[int], value: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        for number in where:
            nodes[number].value = value  # type: ignore[attr-defined]

    return edit


def promoted(tree: ast.Module) -> list[Edit]:
    """What a part of the program makes, as the whole of it."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    made = {
        ast.unparse(node): node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in classes
    }
    return [
        _promoting(number, source)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, ast.FunctionDef) and node.name == "make"
        for source in made
    ]


def _promoting(number: int, source: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        for node in ast.walk(nodes[number]):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                node.value.elts[0] = ast.parse(source, mode="eval").body

    return edit
