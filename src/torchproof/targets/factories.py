"""Finds the factories of a file by reading it, and the command that names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchproof.records import blame
from torchproof.targets.target import Target

# Whether a value is a pair (fn, calls): certainly, perhaps, or not.
_Pair = Literal["yes", "perhaps", "no"]
_Function = ast.FunctionDef | ast.Lambda
_SEQUENCES = (ast.List, ast.ListComp, ast.Tuple)
# Expressions that are neither a function nor a list of calls.
_NEITHER = (ast.Constant, ast.JoinedStr, ast.Compare, ast.Dict, ast.DictComp, ast.Set)
_NO_FUNCTION = (*_NEITHER, *_SEQUENCES, ast.BinOp, ast.UnaryOp, ast.GeneratorExp)


def factories_in(file: str) -> list[str]:
    """Functions that return (fn, calls) when called without arguments, in order.

    If it is certain for some of them, only those.
    """
    found = dict(_Reader(blame.tree_of(file)).factories())
    certain = [name for name, pair in found.items() if pair == "yes"]
    return certain or list(found)


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


@dataclass(frozen=True)
class _Reader:
    """Reads which functions of a module return a pair."""

    tree: ast.Module

    def factories(self) -> Iterator[tuple[str, _Pair]]:
        for name, function in self._functions().items():
            if name.startswith(("_", "test")) or _has_required(function):
                continue
            if (pair := self._returned(function, (name,))) != "no":
                yield name, pair

    def _functions(self) -> dict[str, _Function]:
        functions: dict[str, _Function] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                functions[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                names = [each.id for each in node.targets if isinstance(each, ast.Name)]
                functions |= dict.fromkeys(names, node.value)
        return functions

    def _returned(self, function: _Function, within: tuple[str, ...]) -> _Pair:
        """What all returns agree on; `within` are the functions that call it."""
        if isinstance(function, ast.Lambda):
            return self._pair(function.body, {}, within)
        values: list[ast.expr] = []
        assigned: dict[str, ast.expr] = {}
        for node in _own_nodes(function):
            if isinstance(node, ast.Yield | ast.YieldFrom):
                return "no"
            if isinstance(node, ast.Return) and node.value is not None:
                values.append(node.value)
            if isinstance(node, ast.Assign):
                names = [each.id for each in node.targets if isinstance(each, ast.Name)]
                assigned |= dict.fromkeys(names, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                assigned |= {node.target.id: node.value or node.target}
        if values and _says_pair(function):
            return "yes"
        pairs = {self._pair(value, assigned, within) for value in values}
        if not pairs or "no" in pairs:
            return "no"
        return "yes" if pairs == {"yes"} else "perhaps"

    def _pair(
        self, value: ast.expr, assigned: dict[str, ast.expr], within: tuple[str, ...]
    ) -> _Pair:
        """Whether a value is a pair, given what local variables were assigned last."""
        if isinstance(value, ast.Name) and value.id in assigned:
            rest = {name: each for name, each in assigned.items() if name != value.id}
            return self._pair(assigned[value.id], rest, within)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            name = value.func.id
            called = self._functions().get(name)
            if called is not None and name not in within:
                return self._returned(called, (*within, name))
        if not (isinstance(value, ast.Tuple) and len(value.elts) == 2):
            return "no"
        fn, calls = (
            assigned.get(each.id, each) if isinstance(each, ast.Name) else each
            for each in value.elts
        )
        if isinstance(fn, _NO_FUNCTION) or isinstance(calls, (*_NEITHER, ast.Lambda)):
            return "no"
        if isinstance(calls, ast.BinOp):  # [(x,)] * 3
            return "yes" if _has_sequence(calls) else "no"
        return "yes" if _is_sequence(calls) else "perhaps"


def _is_sequence(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    makes_one = isinstance(called, ast.Name) and called.id in ("list", "tuple")
    return isinstance(value, _SEQUENCES) or makes_one


def _has_sequence(value: ast.BinOp) -> bool:
    return any(
        _has_sequence(side) if isinstance(side, ast.BinOp) else _is_sequence(side)
        for side in (value.left, value.right)
    )


def _has_required(function: _Function) -> bool:
    parameters = function.args
    positional = len(parameters.posonlyargs + parameters.args)
    without_default = positional - len(parameters.defaults)
    return without_default > 0 or None in parameters.kw_defaults


def _says_pair(function: ast.FunctionDef) -> bool:
    """Whether its annotation is a tuple of two, the second of them a sequence."""
    said = ast.unparse(function.returns) if function.returns else ""
    pattern = r"(typing\.)?[tT]uple\[.+, *(typing\.)?([lL]ist|Sequence|[tT]uple)\b.*\]"
    return re.fullmatch(pattern, said.strip("'\"")) is not None


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function in the order of the source, without inner functions."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    waiting: list[ast.AST] = list(function.body[::-1])
    while waiting:
        node = waiting.pop()
        if not isinstance(node, inner):
            yield node
            waiting += list(ast.iter_child_nodes(node))[::-1]
