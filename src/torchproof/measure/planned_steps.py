"""How many steps a running script can still make, read from the loops around a call.

Takes the frame of a call, returns an upper bound, or None where the source does not
show one: a `while` loop, an iterable without a length, a second call of the same kind.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from torchproof.records import COMPREHENSIONS, whose

_PROGRAM = {"user", "library"}
_PURE = {"len": len, "int": int, "min": min, "max": max, "range": range}
# They yield as many items as their first argument has.
_SAME_LENGTH = {"enumerate", "tqdm", "reversed", "sorted", "list", "tuple", "iter"}
_EXPRESSION = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.expr_context),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
)


def planned_steps(frame: FrameType | None) -> int | None:
    """The most often that the script can reach this call, if its loops show that."""
    total, has_loop = 1, False
    while frame is not None:
        code = frame.f_code
        if whose(code.co_filename) not in _PROGRAM:
            frame = frame.f_back
            continue
        if code.co_name in COMPREHENSIONS:
            return None
        tree = _tree(code.co_filename)
        if tree is None or not _is_only_call(tree, frame.f_lineno):
            return None
        for loop in _loops(tree, code, frame.f_lineno):
            count = _length(loop, frame)
            if count is None:
                return None
            total, has_loop = total * count, True
        if frame.f_globals.get("__name__") == "__main__" and code.co_name == "<module>":
            return total if has_loop else None
        frame = frame.f_back
    return None  # it is not below the script, but in a thread


def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_only_call(tree: ast.Module, line: int) -> bool:
    """Whether no other line of the file makes a call of the same name."""
    lines_by_name: dict[str, set[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            # The frame is at a line of the call, which may have several.
            lines = set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            if line in lines:
                lines = {line}
            lines_by_name.setdefault(ast.unparse(node.func), set()).update(lines)
    return all(lines == {line} for lines in lines_by_name.values() if line in lines)


def _loops(tree: ast.Module, code: CodeType, line: int) -> Iterator[ast.AST]:
    """The loops around a line in the function that the code belongs to."""
    for node in _own_nodes(_function(tree, code)):
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            first, last = node.body[0].lineno, node.body[-1].end_lineno
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            first, last = node.lineno, node.end_lineno
        else:
            continue
        if first <= line <= (last or first):
            yield node


def _function(tree: ast.Module, code: CodeType) -> ast.AST:
    if code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(each.lineno for each in decorators)])
            if first == code.co_firstlineno:
                return node
    return tree


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
            yield from _own_nodes(node)


def _length(loop: ast.AST, frame: FrameType) -> int | None:
    return _count(loop.iter, frame) if isinstance(loop, ast.For) else None


def _count(iterable: ast.expr, frame: FrameType) -> int | None:
    """The number of items, without running code of the program but its `__len__`."""
    if isinstance(iterable, ast.List | ast.Tuple):
        starred = any(isinstance(each, ast.Starred) for each in iterable.elts)
        return None if starred else len(iterable.elts)
    if isinstance(iterable, ast.Call):
        name = ast.unparse(iterable.func).rpartition(".")[2]
        if name in _SAME_LENGTH and iterable.args:
            return _count(iterable.args[0], frame)
        if name == "zip" and iterable.args and not iterable.keywords:
            counts = [_count(each, frame) for each in iterable.args]
            return min((c for c in counts if c is not None), default=None)
        if name == "trange" and iterable.args:
            named = ast.Name("range", ast.Load())
            return _count(ast.Call(named, iterable.args[:3], []), frame)
    try:
        return len(_value(iterable, frame))
    except Exception:  # of `__len__`, or a name that is not bound
        return None


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The value of an expression that calls nothing but a few built-in functions."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            if not (isinstance(each.func, ast.Name) and each.func.id in _PURE):
                raise ValueError(each)
        elif not isinstance(each, _EXPRESSION):
            raise ValueError(each)
    names = {**frame.f_globals, **frame.f_locals, **_PURE}
    whole = ast.fix_missing_locations(ast.Expression(node))
    return eval(compile(whole, "<iterable>", "eval"), names)
