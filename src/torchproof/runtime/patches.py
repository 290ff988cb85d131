"""`torchproof.apply_patches`: replaces functions of libraries by those of a folder.

A function is replaced in place where that is possible: its code object is exchanged, so
that every reference to it and every decorator stays. Modules that are imported later
are patched when they are. A function whose installed source is not the one that its
patch was made for is left alone, with one line in the log.
"""

from __future__ import annotations
import __future__

import ast
import functools
import importlib.metadata
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from torchproof.records import MOST_SOURCE_BYTES, Namespace, UserError, read_bytes
from torchproof.runtime.patch_files import (
    Definition,
    PatchModule,
    definitions,
    read_manifest,
)

_log = logging.getLogger("torchproof")


class _Unfit(Exception):
    """Why a function is left alone."""


@dataclass
class Patches:
    """What became of the functions of a patch folder, up to now."""

    folder: Path
    applied: list[str] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)  # with the reason
    waiting: list[str] = field(default_factory=list)  # modules not yet imported

    def __str__(self) -> str:
        def counted(number: int, noun: str) -> str:
            return f"{number} {noun}{'' if number == 1 else 's'}"

        text = f"{counted(len(self.applied), 'function')} patched"
        if self.left_alone:
            text += f", {len(self.left_alone)} left alone"
        if self.waiting:
            text += f", {counted(len(self.waiting), 'module')} not imported yet"
        return text


def apply_patches(folder: str | os.PathLike[str]) -> Patches:
    """Replaces functions by those that `torchproof fix --patch` wrote into a folder.

    Modules that are imported later are patched when they are. The returned object says
    which functions were patched, and why others were left alone.
    """
    patches = Patches(Path(folder).absolute())
    for patch in read_manifest(patches.folder).modules:
        new = _Source.read(patches.folder / patch.file)
        install = functools.partial(_install, patch, new, patches)
        _FINDER.at_import(patch.module, patches.folder, install)
        module = sys.modules.get(patch.module)
        if module is None:
            patches.waiting.append(patch.module)
        else:
            install(module)
    return patches


@dataclass(frozen=True)
class _Source:
    """A source file, and the functions it defines."""

    file: str
    text: str
    functions: Mapping[str, Definition]

    @classmethod
    def read(cls, path: Path | str) -> _Source:
        try:
            text = read_bytes(path, MOST_SOURCE_BYTES).decode("utf-8-sig")
            return cls(str(path), text, definitions(text))
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"cannot read the source {path}: {error}") from None

    def code(self, flags: int) -> dict[str, CodeType]:
        """The code object of each function; nothing of the file is executed."""
        whole = compile(self.text, self.file, "exec", flags, dont_inherit=True)
        return {code.co_qualname: code for code in _codes(whole)}

    @property
    def future(self) -> int:
        """The compiler flags of the `from __future__ import` statements."""
        names = [
            alias.name
            for node in ast.parse(self.text).body
            if isinstance(node, ast.ImportFrom) and node.module == "__future__"
            for alias in node.names
        ]
        features = (getattr(__future__, name) for name in names)
        return sum({feature.compiler_flag for feature in features})


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


# -- modules that are imported later ---------------------------------------------------


class _Finder(MetaPathFinder):
    """Runs a function after a module was imported."""

    def __init__(self) -> None:
        self._actions: dict[str, dict[Path, Callable[[ModuleType], None]]] = {}

    def at_import(
        self, name: str, folder: Path, action: Callable[[ModuleType], None]
    ) -> None:
        """Registers the action of a folder; it replaces an earlier one."""
        self._actions.setdefault(name, {})[folder] = action
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        actions = self._actions.get(fullname)
        if actions is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                self._extend(spec, list(actions.values()))
                return spec
        return None

    @staticmethod
    def _extend(
        spec: ModuleSpec, actions: Sequence[Callable[[ModuleType], None]]
    ) -> None:
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None or isinstance(spec.loader, type):  # not a source file
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in actions:
                action(module)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010


_FINDER = _Finder()


# -- one module ------------------------------------------------------------------------


def _install(
    patch: PatchModule, new: _Source, patches: Patches, module: ModuleType
) -> None:
    """Replaces the functions of a module; never raises, since it may be an import."""
    if patch.module in patches.waiting:
        patches.waiting.remove(patch.module)
    try:
        old = _Source.read(module.__file__ or "")
        code = new.code(old.future)
        _import(patch.imports, module)
    except Exception as error:
        for name in patch.functions:
            _leave(f"{patch.module}.{name}", str(error), patches)
        return
    for name, digest in patch.functions.items():
        full = f"{patch.module}.{name}"
        try:
            _assert_same(name, digest, old, patch)
            if name not in code or name not in new.functions:
                raise _Unfit(f"{new.file} does not define it exactly once")
            _Replacement(module, name, old, new).install(code[name])
        except Exception as error:
            _leave(full, str(error), patches)
        else:
            patches.applied.append(full)


def _leave(name: str, why: str, patches: Patches) -> None:
    patches.left_alone[name] = why
    _log.warning("%s is not patched: %s", name, why)


def _assert_same(name: str, digest: str, old: _Source, patch: PatchModule) -> None:
    here = old.functions.get(name)
    if not digest:
        if here is not None:
            raise _Unfit("the module has a function of this name already")
        return
    if here is None:
        raise _Unfit(f"{old.file} does not define it exactly once{_versions(patch)}")
    if here.digest != digest:
        raise _Unfit(
            "its installed source is not the one that the patch was made for"
            f"{_versions(patch)}"
        )


def _versions(patch: PatchModule) -> str:
    """The versions of the library, if they differ."""
    name, _, made_for = patch.package.rpartition(" ")
    try:
        here = importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return f" ({name} {here} here, {made_for} there)" if here != made_for else ""


def _import(statements: Sequence[str], module: ModuleType) -> None:
    """Adds imports to a module; a name that it has already must mean the same."""
    names: Namespace = {}
    for statement in statements:
        scope = {"__name__": module.__name__, "__package__": module.__package__}
        exec(statement, scope, names)
    for name, value in names.items():
        if vars(module).get(name, value) is not value:
            raise _Unfit(f"{name} is another thing in {module.__name__}")
    vars(module).update(names)


# -- one function ----------------------------------------------------------------------


class _Replacement:
    """A function of a module, and its new definition."""

    def __init__(
        self, module: ModuleType, name: str, old: _Source, new: _Source
    ) -> None:
        self._module, self._name = module, name
        self._old = old.functions.get(name)
        self._new = new.functions[name]
        *path, self._attribute = name.split(".")
        self._holder: Any = module
        for step in path:
            self._holder = vars(self._holder).get(step)
            if not isinstance(self._holder, type):
                raise _Unfit(f"{module.__name__} has no class {step}")
        if path and self._attribute.startswith("__") and self._attribute[-2:] != "__":
            self._attribute = f"_{path[-1].lstrip('_')}{self._attribute}"

    def install(self, code: CodeType) -> None:
        present = vars(self._holder).get(self._attribute)
        if present is None and self._old is not None:
            raise _Unfit(f"{self._module.__name__} does not have it")
        function = None if present is None else self._innermost(present)
        if function is not None and self._fits(function, code):
            function.__code__ = code
            return
        made = self._decorated(self._function(code, function))
        setattr(self._holder, self._attribute, made)
        if present is not None:
            self._rebind(present, made)

    def _innermost(self, value: Any) -> FunctionType | None:
        """The function of the definition, inside whatever its decorators made of it."""
        seen: set[int] = set()
        pending = [value]
        while pending:
            each = pending.pop(0)
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, FunctionType) and self._is_ours(each):
                return each
            pending += _inside(each)
        return None

    def _is_ours(self, function: FunctionType) -> bool:
        return (
            function.__globals__ is vars(self._module)
            and function.__code__.co_qualname == self._name
        )

    def _fits(self, function: FunctionType, code: CodeType) -> bool:
        """Whether only the body differs, so that the code can be exchanged."""
        if self._old is None:
            return False
        return function.__code__.co_freevars == code.co_freevars and _head(
            self._old
        ) == _head(self._new)

    def _function(self, code: CodeType, old: FunctionType | None) -> FunctionType:
        """A new function in the globals of the module."""
        cells = {"__class__": CellType(self._holder)}
        if old is not None:
            names = old.__code__.co_freevars
            cells |= dict(zip(names, old.__closure__ or (), strict=True))
        if missing := [name for name in code.co_freevars if name not in cells]:
            raise _Unfit(f"the new source reads {missing[0]} of an enclosing function")
        closure = tuple(cells[name] for name in code.co_freevars)
        arguments = self._new.node.args
        function = FunctionType(
            code,
            vars(self._module),
            code.co_name,
            tuple(map(self._value, arguments.defaults)) or None,
            closure or None,
        )
        values = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        keywords = {each.arg: self._value(node) for each, node in values if node}
        function.__kwdefaults__ = keywords or None
        if old is not None:
            function.__annotations__ = dict(old.__annotations__)
        return function

    def _decorated(self, function: Any) -> Any:
        for node in reversed(self._new.node.decorator_list):
            function = self._value(node)(function)
        return function

    def _value(self, node: ast.expr) -> Any:
        """A default value or decorator, evaluated where the definition is."""
        code = compile(ast.Expression(node), "<patch>", "eval", dont_inherit=True)
        in_class = isinstance(self._holder, type)
        scope = dict(vars(self._holder)) if in_class else None
        return eval(code, vars(self._module), scope)

    def _rebind(self, old: Any, new: Any) -> None:
        """Replaces the function in modules that have imported it by name."""
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if isinstance(module, ModuleType) and isinstance(names, dict):
                for name in [n for n, value in list(names.items()) if value is old]:
                    names[name] = new
        _log.info(
            "%s.%s is a new object: references in objects keep the old one",
            self._module.__name__,
            self._name,
        )


def _head(definition: Definition) -> str:
    """What is evaluated when the function is defined: decorators and defaults."""
    node = definition.node
    return ast.dump(
        ast.Tuple(
            [*node.decorator_list, *node.args.defaults, *_keyword_defaults(node.args)]
        )
    ) + ast.dump(_bare(node.args))


def _keyword_defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [each or ast.Constant(None) for each in arguments.kw_defaults]


def _bare(arguments: ast.arguments) -> ast.arguments:
    """The parameters without annotations, which are not part of the code."""

    def names(several: Sequence[ast.arg | None]) -> list[ast.arg]:
        return [ast.arg(each.arg) for each in several if each]

    return ast.arguments(
        posonlyargs=names(arguments.posonlyargs),
        args=names(arguments.args),
        vararg=next(iter(names([arguments.vararg])), None),
        kwonlyargs=names(arguments.kwonlyargs),
        kw_defaults=[],
        kwarg=next(iter(names([arguments.kwarg])), None),
        defaults=[],
    )


def _inside(value: Any) -> list[Any]:
    """What a decorator may have wrapped: by attribute, or in a closure."""
    names = ("__wrapped__", "__func__", "fget", "fset", "func")
    inside = [getattr(value, name, None) for name in names]
    for cell in getattr(value, "__closure__", None) or ():
        try:
            inside.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return [each for each in inside if callable(each) or isinstance(each, property)]
