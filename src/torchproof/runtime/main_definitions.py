"""Gives a child process the classes and functions of the main program that it needs.

A pickle refers to them by name, and the child has another main program. Importing the
program there would run it. So `save` finds the definitions that a pickle refers to, and
writes their source, the definitions that they use, and the values of other global names
that they use. `install` makes a main module of that. Cells of a notebook are sources as
well as files.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
import pickle
import pickletools
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.records import UserError

_MOST_BYTES = 16 << 20  # of one global value
_MAIN = "__main__"
_PROTOCOL = 2  # as `torch.save`: each global is one instruction
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS")


@dataclass(frozen=True)
class Definition:
    """The statement of a class or function, after those that change its meaning."""

    file: str
    body: tuple[ast.stmt, ...]

    def compiled(self) -> types.CodeType:
        module = ast.Module([*self.body], type_ignores=[])
        return compile(module, self.file, "exec", dont_inherit=True)

    @property
    def global_names(self) -> set[str]:
        return set(_global_names(self.compiled()))


@dataclass
class MainModule:
    """What a child needs of a main module; `values` are pickles."""

    file: str | None
    definitions: list[Definition] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)

    def add_value(self, name: str, value: Any) -> list[str]:
        """Adds a value if it can be pickled; returns the names that its pickle uses.

        If it cannot, and the model does use it, the child's error has its name.
        """
        if isinstance(value, types.ModuleType):
            if sys.modules.get(value.__name__) is value:
                self.modules[name] = value.__name__
            return []
        try:
            pickled = pickle.dumps(value, _PROTOCOL)
        except Exception:
            return []
        if len(pickled) > _MOST_BYTES:
            return []
        self.values[name] = pickled
        return _names_in_main(pickled)


def save(saved: Path, path: Path) -> bool:
    """Writes what a file of `torch.save` needs of the main program, if anything."""
    with zipfile.ZipFile(saved) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/data.pkl")]
        roots = _names_in_main(archive.read(name))
    if not roots:
        return False
    namespace = vars(sys.modules[_MAIN])
    found = _find_definitions(namespace)
    if lost := [name for name in roots if name not in found]:
        raise UserError(
            f"{lost[0]} is defined in the main program, and its source cannot be read:"
            " define it in a module"
        )
    path.write_bytes(pickle.dumps(_reduced(roots, found, namespace)))
    return True


def install(path: Path) -> None:
    """Makes the main module of this process the one that `save` has written."""
    main: MainModule = pickle.loads(path.read_bytes())
    module = types.ModuleType(_MAIN)
    if main.file is not None:
        module.__file__ = main.file
    sys.modules[_MAIN] = module
    names = vars(module)
    for name, imported in main.modules.items():
        __import__(imported)
        names[name] = sys.modules[imported]
    # Instances of classes of the main program come after their classes.
    late = {name: value for name, value in main.values.items() if b"__main__" in value}
    for name in main.values.keys() - late.keys():
        names[name] = pickle.loads(main.values[name])
    for definition in main.definitions:
        exec(definition.compiled(), names)
    for name, value in late.items():
        names[name] = pickle.loads(value)


# -- what is needed --------------------------------------------------------------------


def _names_in_main(pickled: bytes) -> list[str]:
    """The names of the main program that a pickle refers to."""
    if _MAIN.encode() not in pickled:
        return []
    globals_ = [
        str(argument).partition(" ")
        for code, argument, _ in pickletools.genops(pickled)
        if code.name == "GLOBAL"
    ]
    return list(dict.fromkeys(name for module, _, name in globals_ if module == _MAIN))


def _reduced(
    roots: list[str], found: Mapping[str, Definition], namespace: Mapping[str, Any]
) -> MainModule:
    """The definitions with these names, and everything that they use."""
    result = MainModule(_main_file())
    needed: set[str] = set()
    left = set(roots)
    while left:
        needed.add(name := left.pop())
        if name in found:
            uses = found[name].global_names
        elif name in namespace and not name.startswith("__"):
            uses = {*result.add_value(name, namespace[name])}
        else:
            continue
        left |= uses - needed
    result.definitions = [found[name] for name in found if name in needed]
    return result


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


# -- sources ---------------------------------------------------------------------------


def _find_definitions(namespace: Mapping[str, Any]) -> dict[str, Definition]:
    """The classes and functions of the main program, each file from top to bottom."""
    files = {name: _file_of(value) for name, value in namespace.items()}
    found: dict[str, Definition] = {}
    for file in dict.fromkeys(files.values()):
        if file is None:
            continue
        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError):  # a cell with commands of the notebook
            continue
        futures = [each for each in tree.body if _is_future(each)]
        for node in _definitions_in(tree.body):
            if files.get(node.name) == file:
                found[node.name] = Definition(file, (*futures, node))
    return found


def _definitions_in(body: list[ast.stmt]) -> Iterator[Any]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions_in(node.body)  # `if __name__ == "__main__"`


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _file_of(value: Any) -> str | None:
    """The file of a class or function that is defined in the main program."""
    if getattr(value, "__module__", None) != _MAIN:
        return None
    inside = vars(value).values() if isinstance(value, type) else [value]
    files = [code.co_filename for code in map(_code_of, inside) if code is not None]
    if main := _main_file():
        # Code may name the main program relative to the folder at its start. Methods
        # that a decorator such as `dataclass` makes have no file.
        ours = os.path.basename(main)
        files = [main if os.path.basename(file) == ours else file for file in files]
        files.append(main)
    return next((file for file in files if linecache.getlines(file)), None)


def _code_of(value: Any) -> types.CodeType | None:
    for attribute in ("__wrapped__", "__func__", "fget"):
        value = getattr(value, attribute, value)
    code = getattr(value, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _main_file() -> str | None:
    """The path of the main program; None in an interactive session."""
    return getattr(sys.modules[_MAIN], "__file__", None)
