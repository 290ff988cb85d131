"""Finds the factories of a file by reading it, and the command that names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchproof.records import blame
from torchproof.targets.target import Target

_Pair = tuple[ast.expr, ast.expr]
_Functions = Mapping[str, ast.FunctionDef]
_LISTS = (ast.List, ast.ListComp, ast.Tuple)
# Expressions that are neither a function nor a list of calls.
_NEITHER = (ast.Constant, ast.JoinedStr, ast.Compare, ast.Dict, ast.Lambda)


def factories_in(file: str) -> list[str]:
    """Functions that return (fn, calls) when called without arguments, in order.

    If the calls of some are certainly a list, only those.
    """
    body = blame.tree_of(file).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    found: dict[str, bool] = {}
    for name, function in functions.items():
        if name.startswith(("_", "test")) or _has_required(function):
            continue
        if _is_annotated(function):
            found[name] = True
        elif pairs := _pairs(function, functions):
            found[name] = all(_is_list(calls) for _, calls in pairs)
    return [name for name, certain in found.items() if certain] or list(found)


def factory_targets(target: Target) -> tuple[str, ...]:
    """The factories of a script, as targets: `model.py:make`."""
    if target.kind != "script":
        return ()
    return tuple(f"{target.text}:{name}" for name in factories_in(target.where))


def instead_of_script(target: Target, verb: str, flags: str = "") -> str:
    """Which factory of a script to name or to write, with the command."""
    command, flags = f"torchproof {verb}", f" {flags}" if flags else ""
    if known := factory_targets(target):
        more = f" (or {', '.join(known[1:])})" if known[1:] else ""
        return f"name its factory: {command} {known[0]}{flags}{more}"
    file, what = target.text, "add a factory to it"
    text = "".join(blame.lines_of(target.where))
    if not re.search(r"^if __name__ ==", text, re.MULTILINE):
        # To import it for its factory would run all of it.
        file = str(Path(file).with_name(f"{Path(file).stem}_target.py"))
        what = f"write a factory into {file}"
    return (
        f"{what}, `def make(): return model, [(inputs,)]`, and run: {command}"
        f" {file}:make{flags}"
    )


def _pairs(
    function: ast.FunctionDef, functions: _Functions, within: tuple[str, ...] = ()
) -> list[_Pair]:
    """The pairs that a function returns; none if it may return something else."""
    assigned: dict[str, ast.expr] = {}
    returned: list[ast.expr] = []
    for node in _own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            returned.append(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned |= {n.id: node.value for n in names if isinstance(n, ast.Name)}

    def value_of(node: ast.expr) -> ast.expr:
        return assigned.get(node.id, node) if isinstance(node, ast.Name) else node

    pairs: list[_Pair] = []
    for value in map(value_of, returned):
        called = value.func if isinstance(value, ast.Call) else None
        name = called.id if isinstance(called, ast.Name) else ""
        if name in functions and name not in within:
            found = _pairs(functions[name], functions, (*within, name))
        else:
            found = []
            if isinstance(value, ast.Tuple) and len(value.elts) == 2:
                fn, calls = map(value_of, value.elts)
                no_pair = isinstance(fn, (*_NEITHER, *_LISTS))
                found = [] if no_pair or isinstance(calls, _NEITHER) else [(fn, calls)]
        if not found:
            return []
        pairs += found
    return pairs


def _is_list(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):  # [(x,)] * 3
        return _is_list(value.left) or _is_list(value.right)
    return isinstance(value, _LISTS)


def _has_required(function: ast.FunctionDef) -> bool:
    parameters = function.args
    positional = len(parameters.posonlyargs + parameters.args)
    return positional > len(parameters.defaults) or None in parameters.kw_defaults


def _is_annotated(function: ast.FunctionDef) -> bool:
    """Whether its annotation is a tuple of two, the second of them a list."""
    text = ast.unparse(function.returns) if function.returns else ""
    return re.fullmatch(r"[tT]uple\[.+, *([lL]ist|Sequence)\b.*\]", text) is not None


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function in the order of the source, without inner functions."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    waiting: list[ast.AST] = list(function.body[::-1])
    while waiting:
        node = waiting.pop()
        if not isinstance(node, inner):
            yield node
            waiting += list(ast.iter_child_nodes(node))[::-1]
