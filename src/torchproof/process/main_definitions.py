"""Gives a child process the classes and functions of the main program that it needs.

A pickle refers to them by name, and the child has another main program. Importing the
program there would run it. So `needed` finds the definitions that a pickle refers to,
with their source, the definitions that they use, and the values of other global names
that they use. `install` makes a main module of that. Cells of a notebook are sources as
well as files.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Namespace = dict[str, Any]  # the names of a module, with their values
_MOST_BYTES = 16 << 20  # of one global value
_MAIN = "__main__"
_PROTOCOL = 2  # as `torch.save`: each global is one instruction
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS")
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class NoSource(Exception):
    """A class or function of the main program has no source."""


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
    """What a child needs of a main module; `values` are pickles.

    `sources` are the texts that the definitions are in, by file. `unsent` are names
    without a value here, with the reason.
    """

    file: str | None
    sources: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, list[str]] = field(default_factory=dict)  # names by file
    modules: dict[str, str] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    unsent: dict[str, str] = field(default_factory=dict)

    def rename(self, names: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Gives files other names, and some of these another text."""
        definitions, sources = self.definitions, self.sources
        self.definitions = {names.get(f, f): each for f, each in definitions.items()}
        self.sources = {names.get(f, f): text for f, text in sources.items()}
        self.sources |= {file: texts[file] for file in self.sources if file in texts}

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
        except Exception as error:
            self.unsent[name] = f"{type(error).__name__}: {error}"
            return []
        if len(pickled) > _MOST_BYTES:
            self.unsent[name] = f"it has more than {_MOST_BYTES >> 20} MiB"
            return []
        self.values[name] = pickled
        return names_in(pickled)


# Takes a value of the main program over; returns the names that its pickle uses, or
# None to leave it to the main module.
Keep = Callable[[str, Any], Iterable[str] | None]


def save(saved: Path, path: Path) -> bool:
    """Writes what a file of `torch.save` needs of the main program, if anything."""
    import zipfile

    with zipfile.ZipFile(saved) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/data.pkl")]
        roots = names_in(archive.read(name))
    if not roots:
        return False
    path.write_bytes(pickle.dumps(needed(roots)))
    return True


def load(path: Path) -> MainModule:
    """What `save` has written."""
    main: MainModule = pickle.loads(path.read_bytes())
    return main


def needed(roots: Iterable[str], keep: Keep = lambda name, value: None) -> MainModule:
    """What the names of the main program need; raises `NoSource` for one without."""
    namespace = vars(sys.modules[_MAIN])
    found = _find_definitions(namespace)
    roots = [*roots]
    _assert_sources(roots, found)
    return _reduced(roots, found, namespace, keep)


def _assert_sources(names: Iterable[str], found: Mapping[str, Definition]) -> None:
    """A pickle can only be loaded where all definitions that it refers to are."""
    if lost := [name for name in names if name not in found]:
        raise NoSource(
            f"{lost[0]} is defined in the main program, and its source cannot be read:"
            " define it in a module"
        )


def _is_definition_of_main(value: Any) -> bool:
    defines = isinstance(value, type | types.FunctionType)
    return defines and value.__module__ == _MAIN and value.__name__ != "<lambda>"


def install(
    main: MainModule, edited: Callable[[str], str | None] = lambda file: None
) -> Namespace:
    """Makes the main module of this process from what `needed` has found.

    `edited` has the text of a file that was edited. Returns the names of the module.
    """
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
    for file, wanted in main.definitions.items():
        text = main.sources[file]
        for definition in _to_execute(file, wanted, text, edited(file) or text):
            exec(definition.compiled(), names)
    for name, value in late.items():
        names[name] = pickle.loads(value)
    return names


def _to_execute(
    file: str, wanted: list[str], before: str, text: str
) -> Iterator[Definition]:
    """The definitions with these names, and what edits added at the top of the text."""
    tree = ast.parse(text)
    futures = tuple(each for each in tree.body if _is_future(each))
    known: set[str] = set()
    if text != before:
        known = {ast.dump(node) for node in ast.parse(before).body}
        for node in tree.body:
            if ast.dump(node) not in known and not _is_definition(node):
                yield Definition(file, (*futures, node))
    for node in _definitions_in(tree.body):
        is_new = known and ast.dump(node) not in known
        if node.name in wanted or is_new:
            yield Definition(file, (*futures, node))


# -- what is needed --------------------------------------------------------------------


def names_in(pickled: bytes) -> list[str]:
    """The names of the main program that a pickle refers to."""
    import pickletools

    if _MAIN.encode() not in pickled:
        return []
    globals_ = [
        str(argument).partition(" ")
        for code, argument, _ in pickletools.genops(pickled)
        if code.name == "GLOBAL"
    ]
    return list(dict.fromkeys(name for module, _, name in globals_ if module == _MAIN))


def _reduced(
    roots: Iterable[str],
    found: Mapping[str, Definition],
    namespace: Namespace,
    keep: Keep,
) -> MainModule:
    """The definitions with these names, and everything that they use."""
    result = MainModule(_main_file())
    seen: set[str] = set()
    left = set(roots)
    while left:
        seen.add(name := left.pop())
        if name in found:
            uses = found[name].global_names
        elif name in namespace and not name.startswith("__"):
            value = namespace[name]
            if _is_definition_of_main(value):
                result.unsent[name] = "its source cannot be read"
                continue
            kept = keep(name, value)
            _assert_sources(kept or (), found)
            uses = {*(result.add_value(name, value) if kept is None else kept)}
        else:
            continue
        left |= uses - seen
    for name in found:
        if name in seen:
            file = found[name].file
            result.definitions.setdefault(file, []).append(name)
            result.sources[file] = "".join(linecache.getlines(file))
    return result


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


# -- sources ---------------------------------------------------------------------------


def _find_definitions(namespace: Namespace) -> dict[str, Definition]:
    """The classes and functions of the main program, each file from top to bottom."""
    files = {name: _file_of(value) for name, value in namespace.items()}
    lost = {
        name
        for name, value in namespace.items()
        if files[name] is None and _is_definition_of_main(value)
    }
    files |= _files_without_code(lost) if lost else {}
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


def _files_without_code(names: set[str]) -> dict[str, str | None]:
    """The cells that define these classes, which have no method with a file.

    Such as a dataclass or an enumeration. The cell that ran last counts.
    """
    found: dict[str, str | None] = {}
    for file in [*linecache.cache]:
        if os.path.exists(file) or not (lines := linecache.getlines(file)):
            continue
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError):
            continue
        for node in _definitions_in(tree.body):
            if isinstance(node, ast.ClassDef) and node.name in names:
                found[node.name] = file
    return found


def _definitions_in(body: list[ast.stmt]) -> Iterator[Any]:
    for node in body:
        if _is_definition(node):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions_in(node.body)  # `if __name__ == "__main__"`


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef | _FUNCTION)


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
