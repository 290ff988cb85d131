"""The globals of a module: those it binds and uses, and the nodes that name them.

Python's compiler tells: its instructions for globals have the places of their nodes.
"""

from __future__ import annotations

import ast
import builtins
import dis
import types
import warnings
from collections.abc import Iterator, Mapping

_STORES = ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")
_ACCESSES = (*_STORES, "LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
Definition = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = Definition | ast.ClassDef | ast.Lambda


class Globals:
    """The globals of a module; the nodes must have their places in one text.

    `bound` are the names that its own statements or `global` bind, `used` these and
    all others that it accesses, `hidden` those that functions and classes bind.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.bound: set[str] = set()
        self.used: set[str] = set()
        self.hidden: set[str] = set()
        self._tree = tree
        self._places: set[tuple[str, int | None, int | None]] = set()
        # With `from __future__ import annotations`, annotations would be no code.
        body = [node for node in tree.body if not is_future(node)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # the user's own code
            code = compile(ast.Module(body, []), "module", "exec", dont_inherit=True)
        self._read(code, own=frozenset({"__doc__"}))  # set by a docstring

    def _read(self, code: types.CodeType, own: frozenset[str]) -> None:
        """Reads the instructions; `own` are names that a class binds for itself."""
        for instruction in dis.get_instructions(code):
            name, operation = instruction.argval, instruction.opname
            if operation in _ACCESSES and name not in own:
                self.used.add(name)
                if operation in _STORES:
                    self.bound.add(name)
                if at := instruction.positions:
                    self._places.add((name, at.lineno, at.col_offset))
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                in_class = {
                    each.argval
                    for each in dis.get_instructions(inner)
                    if each.opname == "STORE_NAME"
                }
                self.hidden |= {*inner.co_varnames, *inner.co_cellvars, *in_class}
                self._read(inner, frozenset(in_class))

    def undefined(self) -> set[str]:
        """Returns names that neither the module nor Python defines."""
        unbound = self.used - self.bound - {"__file__"}
        return {name for name in unbound if not hasattr(builtins, name)}

    def nodes(self) -> Iterator[tuple[ast.AST, str]]:
        """Yields each node that names a global, with the name."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name):
                if (node.id, node.lineno, node.col_offset) in self._places:
                    yield node, node.id
            elif isinstance(node, ast.Global):
                yield from ((node, name) for name in node.names)
        for node in _outside_of_functions(self._tree):
            if isinstance(node, ast.alias):
                yield node, bound_by(node)
            elif isinstance(name := getattr(node, "name", None), str):
                yield node, name

    def rename(self, names: Mapping[str, str]) -> None:
        for node, name in [*self.nodes()]:
            if name in names:
                rename(node, name, names[name])


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Scope):
            yield from _outside_of_functions(child)


def rename(node: ast.AST, old: str, new: str) -> None:
    """Writes another name into a node; that of `import a.b` stays."""
    match node:
        case ast.Name():
            node.id = new
        case ast.Global():
            node.names = [new if name == old else name for name in node.names]
        case ast.alias():
            if "." not in node.name or node.asname:
                node.asname = new if new != node.name else None
        case _:
            node.name = new  # type: ignore[attr-defined]


def is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def parameters(node: Definition) -> list[ast.arg]:
    """Returns all parameters of a function in source order."""
    arguments = node.args
    parts = (
        *arguments.posonlyargs,
        *arguments.args,
        arguments.vararg,
        *arguments.kwonlyargs,
        arguments.kwarg,
    )
    return [part for part in parts if part is not None]


def mentioned_names(node: ast.AST) -> Iterator[str]:
    """Yields every name, attribute, keyword and string in a piece of source."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.keyword) and child.arg:
            yield child.arg
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
