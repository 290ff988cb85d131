"""Edits that make a program smaller, one small step each.

Each pass takes one node of a program and yields changes of that node. A change is a
function that edits the node in place. `program_reducer` applies each change to a fresh
copy, and decides whether the program still fails: so a change may be wrong.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torchproof.packs.repro.programs.scopes import parameters

Change = Callable[[], object]
Pass = Callable[[ast.AST], Iterator[Change]]

_BLOCKS = ("body", "orelse", "finalbody", "handlers")
_ITEMS = ("keywords", "args", "defaults", "elts", "decorator_list", "bases")
_ENTRIES = {"make", "before_call", "run"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


# -- items of lists --------------------------------------------------------------------


def shorter_lists(node: ast.AST) -> Iterator[Change]:
    """Removes elements of a list: fewer calls, fewer layers."""
    if isinstance(node, ast.List):
        yield from _fewer(node, ("elts",))
    for set_value, inner in _expressions(node):
        if isinstance(inner, ast.ListComp | ast.GeneratorExp):
            yield partial(set_value, ast.List([inner.elt], ast.Load()))


def fewer_statements(node: ast.AST) -> Iterator[Change]:
    return _fewer(node, _BLOCKS)


def fewer_items(node: ast.AST) -> Iterator[Change]:
    """Removes arguments, keywords, elements, bases, decorators and parameters."""
    yield from _fewer(node, _ITEMS)
    if isinstance(node, ast.Dict):
        for start, end in _spans(len(node.keys)):
            yield partial(_delete_keys, node, start, end)


def _fewer(node: ast.AST, fields: tuple[str, ...]) -> Iterator[Change]:
    for field in fields:
        items = getattr(node, field, None)
        if isinstance(items, list) and not _is_empty(items):
            for start, end in _spans(len(items)):
                yield partial(_delete, node, items, start, end)


def _is_empty(items: list[ast.AST]) -> bool:
    return all(isinstance(each, ast.Pass) for each in items)


def _spans(length: int) -> Iterator[tuple[int, int]]:
    """Yields the whole range, then halves, then shorter runs, the last one first."""
    size = length
    while size:
        for start in reversed(range(0, length, size)):
            yield start, min(start + size, length)
        size //= 2


def _delete(node: ast.AST, items: list[Any], start: int, end: int) -> None:
    del items[start:end]
    if not items and items is getattr(node, "body", None):
        items.append(ast.Pass())
    if isinstance(node, ast.Try) and not node.handlers and not node.finalbody:
        node.finalbody = [ast.Pass()]


def _delete_keys(node: ast.Dict, start: int, end: int) -> None:
    del node.keys[start:end], node.values[start:end]


# -- blocks ----------------------------------------------------------------------------


def trivial_functions(node: ast.AST) -> Iterator[Change]:
    """Replaces a body by returning the first argument, and removes annotations."""
    if not isinstance(node, _Function):
        return
    names = [a.arg for a in parameters(node) if a.arg not in {"self", "cls"}]
    body = f"return {names[0]}" if names else "pass"
    if node.name == "__init__":
        body = "super().__init__()"
    if node.name not in _ENTRIES and ast.unparse(ast.Module(node.body, [])) != body:
        yield partial(setattr, node, "body", ast.parse(body).body)
    if node.returns or any(each.annotation for each in parameters(node)):
        yield partial(remove_annotations, node)


def remove_annotations(node: _Function) -> None:
    node.returns = None
    for argument in parameters(node):
        argument.annotation = None


def unwrapped_blocks(node: ast.AST) -> Iterator[Change]:
    """Replaces an if, for, while, with or try by its body."""
    for block in _blocks(node):
        for place, inner in enumerate(block):
            if isinstance(inner, ast.If | ast.For | ast.While | ast.With | ast.Try):
                for statements in _blocks(inner):
                    if not isinstance(statements[0], ast.ExceptHandler):
                        yield partial(_unwrap, block, place, statements)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in _BLOCKS:
        block = getattr(node, field, None)
        if isinstance(block, list) and block:
            yield block


def _unwrap(block: list[ast.stmt], place: int, statements: list[ast.stmt]) -> None:
    for node in ast.walk(block[place]):
        if isinstance(node, ast.Break | ast.Continue):  # the body now runs once
            node.__class__ = ast.Pass  # type: ignore[assignment]
    block[place : place + 1] = statements


def promoted_parts(node: ast.AST) -> Iterator[Change]:
    """Returns an object that the program builds inside as the result of `make`."""
    if not isinstance(node, ast.Module):
        return
    classes = {each.name for each in node.body if isinstance(each, ast.ClassDef)}
    parts = {
        ast.unparse(each): each
        for each in ast.walk(node)
        if isinstance(each, ast.Call) and ast.unparse(each.func) in classes
    }
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "make":
            for each in ast.walk(function):
                if isinstance(each, ast.Return) and isinstance(each.value, ast.Tuple):
                    for part in parts.values():
                        yield partial(each.value.elts.__setitem__, 0, part)


# -- expressions -----------------------------------------------------------------------


def simpler_expressions(node: ast.AST) -> Iterator[Change]:
    """Replaces an expression by one of its operands."""
    for set_value, inner in _expressions(node):
        for other in _simpler(inner):
            yield partial(set_value, other)


def _expressions(
    parent: ast.AST,
) -> Iterator[tuple[Callable[[ast.expr], object], ast.expr]]:
    """Yields the expressions of a node, each with a function that replaces it."""
    for field, value in ast.iter_fields(parent):
        if field in {"func", "decorator_list", "targets", "target", "format_spec"}:
            continue
        if isinstance(value, ast.expr):
            yield partial(setattr, parent, field), value
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.expr):
                    yield partial(value.__setitem__, place), item


def _simpler(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Call(func=func, args=arguments):
            called = ast.unparse(func)
            name = called.rpartition(".")[2]
            if name[:1].isupper() and name != "Identity":
                yield ast.parse("torch.nn.Identity()", mode="eval").body
            yield from arguments[:3]
            root = called.partition(".")[0]
            if isinstance(func, ast.Attribute) and root not in {"torch", "self"}:
                yield func.value
        case ast.JoinedStr():
            yield ast.Constant("")
        case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp() | ast.Compare():
            yield from _operands(node)
        case ast.Subscript(value=value) | ast.Starred(value=value):
            yield value


def _operands(node: ast.expr) -> list[ast.expr]:
    return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]


def inlined_names(node: ast.AST) -> Iterator[Change]:
    """Replaces a name that is assigned once by its value, if it is short or read once.

    It often makes a statement superfluous.
    """
    if not isinstance(node, ast.Module):
        return
    uses: defaultdict[str, list[ast.Name]] = defaultdict(list)
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            uses[each.id].append(each)
    for owner in ast.walk(node):
        for block in _blocks(owner):
            for statement in block:
                match statement:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        loads = [n for n in uses[name] if isinstance(n.ctx, ast.Load)]
                        is_short = isinstance(value, ast.Name | ast.Constant)
                        is_once = len(uses[name]) == len(loads) + 1
                        if is_once and (is_short or len(loads) == 1):
                            yield partial(_inline, owner, block, statement, loads)


def _inline(
    owner: ast.AST, block: list[ast.stmt], statement: ast.Assign, loads: list[ast.Name]
) -> None:
    at = block.index(statement)
    _delete(owner, block, at, at + 1)
    for node in loads:
        value = copy.deepcopy(statement.value)
        node.__class__ = value.__class__  # type: ignore[assignment]
        node.__dict__ = value.__dict__


def smaller_integers(node: ast.AST) -> Iterator[Change]:
    """Replaces an integer by smaller ones, together with all that are equal to it."""
    if not isinstance(node, ast.Module):
        return
    places: defaultdict[int, list[ast.Constant]] = defaultdict(list)
    for each in ast.walk(node):
        match each:
            case ast.Constant(value=int(value)) if value > 2:
                places[value].append(each)
    for value in sorted(places, reverse=True):
        for smaller in dict.fromkeys((2, 3, value // 4, value // 2)):
            if 1 < smaller < value:
                yield partial(_set_values, places[value], smaller)


def _set_values(constants: list[ast.Constant], value: int) -> None:
    for constant in constants:
        constant.value = value


# Shorter lists come first because fewer calls make all later attempts faster.
PASSES: tuple[Pass, ...] = (
    shorter_lists,
    trivial_functions,
    fewer_statements,
    unwrapped_blocks,
    promoted_parts,
    simpler_expressions,
    inlined_names,
    fewer_items,
    smaller_integers,
)
