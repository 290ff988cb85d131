"""Merges a file and the local files that it imports into one module.

Imports of installed packages stay. If two files define the same name, one of them gets
another name; the file at the root keeps its names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.packs.repro.programs.scopes import (
    Definition,
    Globals,
    bound_by,
    rename,
)
from torchproof.records import located, whose

_Import = ast.Import | ast.ImportFrom


class Unsuitable(Exception):
    """The reason why no program can be extracted from a target, in one sentence."""


@dataclass(frozen=True)
class Merged:
    """One module, and the names that the globals of its root file have in it."""

    tree: ast.Module
    names: Mapping[str, str]
    file_count: int


def merge_files(path: Path) -> Merged:
    """Merges the program that starts in a file, or raises `Unsuitable`."""
    root = path.resolve()
    program = _Program(root.parent)
    program.read(root)
    if root not in program.files:
        raise Unsuitable("its file cannot be read")
    program.choose_names(root)
    names = {
        name: program.merged_name(root, name)
        for name in program.files[root].names.bound
        if not program.is_module(root, name)
    }
    return Merged(program.written(), names, len(program.files))


@dataclass(frozen=True)
class _Imported:
    """The target of an import: a local file, or a name that it defines."""

    file: Path
    attribute: str | None = None


@dataclass
class _File:
    path: Path
    tree: ast.Module
    names: Globals
    globals: dict[str, _Imported] = field(default_factory=dict)  # by name
    locals: dict[int, _Imported] = field(default_factory=dict)  # by the id of a node


class _Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[Path, _File] = {}  # a file comes after those it imports
        self._begun: set[Path] = set()
        self._names: dict[tuple[Path, str], str] = {}

    # -- reading -----------------------------------------------------------------------

    def read(self, path: Path) -> None:
        if path in self._begun or not path.is_file():
            return
        self._begun.add(path)
        imported: dict[int, _Imported] = {}  # by the id of an alias
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, _Import):
                    imported |= self._read_import(node, path)
            file = _File(path, tree, Globals(ast.fix_missing_locations(tree)))
        except (OSError, SyntaxError, ValueError) as error:
            raise Unsuitable(f"cannot read {path.name}: {error}") from None
        for alias, name in file.names.nodes():
            if id(alias) in imported:
                file.globals[name] = imported.pop(id(alias))
        for function in ast.walk(tree):
            if isinstance(function, Definition):
                file.locals |= dict(_local_names(function, imported))
        self.files[path] = file

    def _read_import(self, node: _Import, path: Path) -> dict[int, _Imported]:
        """Reads the local files that a statement imports; returns them by alias."""
        found: dict[int, _Imported] = {}
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = self._file(alias.name)
                home = whole if alias.asname else self._file(bound_by(alias))
                if home is not None:
                    self._read_all(home, whole)
                    found[id(alias)] = _Imported(home)
            return found
        home = self._home(node, path)
        if home is None:
            return found
        self.read(home)
        if [alias.name for alias in node.names] == ["*"] and home in self.files:
            public = sorted(self.files[home].names.bound)
            node.names = [ast.alias(name) for name in public if name[0] != "_"]
        for alias in node.names:
            inner = self.module_in(home, alias.name)
            self._read_all(inner)
            found[id(alias)] = (
                _Imported(inner) if inner else _Imported(home, alias.name)
            )
        return found

    def _read_all(self, *paths: Path | None) -> None:
        for path in paths:
            if path is not None:
                self.read(path)

    def module_in(self, home: Path, name: str) -> Path | None:
        """Returns the local module that a module or package calls `name`."""
        imported = self.files[home].globals.get(name) if home in self.files else None
        if imported is not None and imported.attribute is None:
            return imported.file
        return _submodule(home, name)

    def _home(self, node: ast.ImportFrom, path: Path) -> Path | None:
        """Returns the local file or directory of a `from ... import`."""
        if not node.level:
            return self._file(node.module or "")
        home = path.parents[node.level - 1]
        for part in filter(None, (node.module or "").split(".")):
            inner = _submodule(home, part)
            if inner is None:
                return None
            home = inner
        if (home / "__init__.py").is_file():
            return home / "__init__.py"
        return home if whose(str(home)) == "user" else None

    def _file(self, name: str) -> Path | None:
        path = located(name, [str(self.folder)])
        if path is None:  # a namespace package
            path = self.folder.joinpath(*name.split("."))
            if not path.is_dir():
                return None
        return path.resolve() if whose(str(path)) == "user" else None

    # -- naming ------------------------------------------------------------------------

    def choose_names(self, root: Path) -> None:
        """Chooses names for all globals; no local variable may hide one."""
        hidden = {name for file in self.files.values() for name in file.names.hidden}
        owners: dict[str, object] = {}
        for file in (self.files[root], *self.files.values()):
            packages = dict(_package_imports(file.tree))
            for name in sorted(file.names.bound):
                place = (file.path, name)
                if place in self._names or name in file.globals:
                    continue
                # Files that make the same import share its name.
                owner: object = packages.get(name, place)
                new, number = name, 1
                if file.path != root and name in hidden:
                    new = f"{file.path.stem}_{name}"
                while owners.setdefault(new, owner) != owner:
                    number += 1
                    new = f"{file.path.stem}_{name}" + f"_{number}" * (number > 2)
                self._names[place] = new

    def is_module(self, path: Path, name: str) -> bool:
        imported = self.files[path].globals.get(name)
        return imported is not None and imported.attribute is None

    def merged_name(self, path: Path, name: str, *, depth: int = 0) -> str:
        """Returns the name of a file's global in the merged module."""
        if path not in self.files or depth > 20:
            raise Unsuitable(f"cannot read {path.name}")
        imported = self.files[path].globals.get(name)
        if imported is None:
            return self._names.get((path, name), name)
        if imported.attribute is None:
            raise Unsuitable(f"{path.name} uses the module {name} as a value")
        return self.merged_name(imported.file, imported.attribute, depth=depth + 1)

    # -- writing -----------------------------------------------------------------------

    def written(self) -> ast.Module:
        imports: dict[str, ast.stmt] = {}
        body: list[ast.stmt] = []
        for file in self.files.values():
            _Rewriter(self, file).visit(file.tree)
            for statement in file.tree.body:
                if isinstance(statement, _Import):
                    imports.setdefault(ast.unparse(statement), statement)
                else:
                    body.append(statement)
        # `from __future__` has to come first; one file's holds for all.
        first = sorted(imports, key=lambda text: "__future__" not in text)
        tree = ast.Module([*(imports[text] for text in first), *body], [])
        return ast.parse(ast.unparse(ast.fix_missing_locations(tree)))


def _package_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the names that a file imports, each with an identity of its import."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield bound_by(alias), alias.name if alias.asname else bound_by(alias)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield bound_by(alias), f"{node.module}:{alias.name}"


def _local_names(
    function: ast.AST, imported: Mapping[int, _Imported]
) -> Iterator[tuple[int, _Imported]]:
    """Yields the nodes in a function that stand for what it imports itself."""
    names = {
        bound_by(node): imported[id(node)]
        for node in ast.walk(function)
        if isinstance(node, ast.alias) and id(node) in imported
    }
    for node in ast.walk(function):
        name = bound_by(node) if isinstance(node, ast.alias) else None
        name = node.id if isinstance(node, ast.Name) else name
        if name in names:
            yield id(node), names[name]


class _Rewriter(ast.NodeTransformer):
    """Renames the globals of one file and removes its local imports."""

    def __init__(self, program: _Program, file: _File) -> None:
        self._program = program
        self._file = file
        self._imported = dict(file.locals)  # by the id of a node
        for node, name in [*file.names.nodes()]:
            if name in file.globals:
                self._imported[id(node)] = file.globals[name]
            else:
                rename(node, name, program.merged_name(file.path, name))

    def visit_Import(self, node: _Import) -> ast.AST | None:
        node.names = [a for a in node.names if id(a) not in self._imported]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return self.visit_Import(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        imported = self._imported.get(id(node))
        if imported is None:
            return node
        if imported.attribute is None:
            raise Unsuitable(
                f"{self._file.path.name} uses the module {node.id} as a value"
            )
        name = self._program.merged_name(imported.file, imported.attribute)
        return ast.Name(name, node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        module = self._module(node.value)
        if module is None or self._program.module_in(module, node.attr):
            return self.generic_visit(node)
        return ast.Name(self._program.merged_name(module, node.attr), node.ctx)

    def _module(self, node: ast.expr) -> Path | None:
        """Returns the local file that an expression such as `parts.b` stands for."""
        if isinstance(node, ast.Attribute):
            package = self._module(node.value)
            return self._program.module_in(package, node.attr) if package else None
        imported = self._imported.get(id(node))
        return imported.file if imported and imported.attribute is None else None

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        # A block that contained only local imports.
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node


def _submodule(home: Path, name: str) -> Path | None:
    """Returns the file of a submodule; None if the name is not a submodule."""
    folder = home.parent if home.name == "__init__.py" else home
    if not folder.is_dir():
        return None
    for inner in (folder / f"{name}.py", folder / name / "__init__.py", folder / name):
        if inner.exists():
            return inner
    return None
