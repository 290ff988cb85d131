"""Merges a file and the local files that it imports into one module.

Imports of installed packages stay. If two files define the same name, one of them gets
another name; the file at the root keeps its names.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.packs.repro.programs.scopes import MODULE, Binding, Names
from torchproof.records import located, whose


class Unsuitable(Exception):
    """The reason why no program can be extracted from a target, in one sentence."""


@dataclass(frozen=True)
class Imported:
    """The target of an import: a local file, or a name that it defines."""

    file: Path
    attribute: str | None = None


@dataclass
class File:
    path: Path
    tree: ast.Module
    names: Names
    imported: dict[Binding, Imported] = field(default_factory=dict)

    @property
    def globals(self) -> set[str]:
        return self.names.scopes[MODULE].bound


@dataclass
class Merged:
    """One module, and the new names of what its root file defines."""

    tree: ast.Module
    _program: _Program
    _root: Path

    @property
    def files(self) -> list[Path]:
        return list(self._program.files)

    def defines(self, name: str) -> bool:
        return name in self._program.files[self._root].globals

    def name(self, name: str) -> str:
        if not self.defines(name):
            raise Unsuitable(f"{self._root.name} does not define {name}")
        return self._program.merged_name(self._root, name)


def merge_files(path: Path) -> Merged:
    """Merges the program that starts in a file, or raises `Unsuitable`."""
    root = path.resolve()
    program = _Program(root.parent)
    program.read(root)
    program.name_all(root)
    return Merged(program.written(), program, root)


class _Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[
            Path, File
        ] = {}  # a file comes after the files that it imports
        self._reading: set[Path] = set()
        self._taken: dict[str, object] = {}
        self._names: dict[object, str] = {}

    # -- reading -----------------------------------------------------------------------

    def read(self, path: Path) -> None:
        if path in self._reading:
            return
        self._reading.add(path)
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError) as error:
            raise Unsuitable(f"cannot read {path.name}: {error}") from None
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        for node in imports:
            self._expand_star(node, path)
        file = File(path, tree, Names(tree))
        for occurrence in file.names.occurrences:
            if isinstance(occurrence.node, ast.alias):
                binding = file.names.binding(occurrence)
                imported = self._local(occurrence.node, tree, path)
                if binding is not None and imported is not None:
                    file.imported[binding] = imported
                    self.read_all(imported)
        self.files[path] = file

    def read_all(self, imported: Imported) -> None:
        if imported.file.is_file():
            self.read(imported.file)

    def _expand_star(self, node: ast.ImportFrom, path: Path) -> None:
        home = self._home(node, path)
        if home is None or [alias.name for alias in node.names] != ["*"]:
            return
        self.read(home)
        public = [n for n in sorted(self.files[home].globals) if n[0] != "_"]
        node.names = [ast.alias(name) for name in public]

    def _local(self, alias: ast.alias, tree: ast.Module, path: Path) -> Imported | None:
        """Resolves an import of a local file; None for an installed package."""
        statement = next(
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and alias in node.names
        )
        if isinstance(statement, ast.Import):
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            home = self._file(whole)
            if home and not alias.asname and "." in alias.name:
                self.read_dotted(alias.name)
            return Imported(home) if home else None
        home = self._home(statement, path)
        if home is None:
            return None
        inner = _submodule(home, alias.name)
        return Imported(inner) if inner else Imported(home, alias.name)

    def read_dotted(self, name: str) -> None:
        file = self._file(name)
        if file and file.is_file():
            self.read(file)

    def _home(self, node: ast.ImportFrom, path: Path) -> Path | None:
        """Returns the local file or directory of a `from ... import`."""
        if not node.level:
            return self._file(node.module or "")
        folder = path.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        for part in (node.module or "").split("."):
            inner = _submodule(folder, part) if part else folder
            if inner is None:
                return None
            folder = inner
        return _package(folder)

    def _file(self, name: str) -> Path | None:
        path = located(name, [str(self.folder)])
        if path is None:  # a namespace package
            path = self.folder.joinpath(*name.split("."))
            if not path.is_dir():
                return None
        return path.resolve() if whose(str(path)) == "user" else None

    # -- naming ------------------------------------------------------------------------

    def name_all(self, root: Path) -> None:
        """Chooses names for all globals; no local variable may hide one."""
        hidden = {
            name
            for file in self.files.values()
            for scope in file.names.scopes[1:]
            for name in scope.bound
        }
        order = [self.files[root], *self.files.values()]
        for file in order:
            for name in sorted(file.globals):
                if Binding(MODULE, name) in file.imported:
                    continue
                identity = self._identity(file, name)
                if identity not in self._names:
                    free = name not in self._taken
                    free &= file.path == root or name not in hidden
                    new = name if free else self._free(f"{file.path.stem}_{name}")
                    self._names[identity] = new
                    self._taken[new] = identity

    def _free(self, stem: str) -> str:
        name, number = stem, 2
        while name in self._taken:
            name, number = f"{stem}_{number}", number + 1
        return name

    def _identity(self, file: File, name: str) -> object:
        """Returns a key that two files share if both make the same import."""
        for node in file.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname == name:
                        return ("import", alias.name)
                    if not alias.asname and alias.name.partition(".")[0] == name:
                        return ("import", name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return ("import", node.module, alias.name)
        return (file.path, name)

    def merged_name(self, path: Path, name: str, *, depth: int = 0) -> str:
        """Returns the name of a file's global in the merged module."""
        file = self.files[path]
        imported = file.imported.get(Binding(MODULE, name))
        if imported is None:
            return self._names.get(self._identity(file, name), name)
        nested = depth > 20 or imported.file not in self.files
        if imported.attribute is None or nested:
            raise Unsuitable(f"{path.name} uses the module {name} as a value")
        return self.merged_name(imported.file, imported.attribute, depth=depth + 1)

    # -- writing -----------------------------------------------------------------------

    def written(self) -> ast.Module:
        imports: dict[str, ast.stmt] = {}
        body: list[ast.stmt] = []
        for file in self.files.values():
            _Rewriter(self, file).visit(file.tree)
            for statement in file.tree.body:
                if not isinstance(statement, ast.Import | ast.ImportFrom):
                    body.append(statement)
                elif getattr(statement, "module", "") != "__future__":
                    imports.setdefault(ast.unparse(statement), statement)
        tree = ast.Module([*imports.values(), *body], [])
        return ast.fix_missing_locations(tree)


class _Rewriter(ast.NodeTransformer):
    """Renames the globals of one file and removes its local imports."""

    def __init__(self, program: _Program, file: File) -> None:
        self._program = program
        self._file = file
        names = file.names
        self._bindings = {id(s.node): names.binding(s) for s in names.occurrences}
        names.rename(self._name)

    def _name(self, binding: Binding) -> str | None:
        if binding in self._file.imported or binding.scope != MODULE:
            return None
        return self._program.merged_name(self._file.path, binding.name)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return self._without_local(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return self._without_local(node)

    def _without_local(self, node: ast.Import | ast.ImportFrom) -> ast.AST | None:
        node.names = [a for a in node.names if self._import_of(a) is None]
        return node if node.names else None

    def _import_of(self, node: ast.AST) -> Imported | None:
        binding = self._bindings.get(id(node))
        return self._file.imported.get(binding) if binding else None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        imported = self._import_of(node)
        if imported is None:
            return node
        if imported.attribute is None:
            raise Unsuitable(
                f"{self._file.path.name} uses the module {node.id} as a value"
            )
        return self._global(imported.file, imported.attribute, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        chain: list[ast.Attribute] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            chain.append(base)
            base = base.value
        imported = self._import_of(base)
        if imported is None or imported.attribute is not None:
            return self.generic_visit(node)
        file = imported.file
        while chain:
            step = chain.pop()
            inner = _submodule(file, step.attr)
            if inner is None:
                merged: ast.expr = self._global(file, step.attr, step)
                for outer in reversed(chain):
                    outer.value = merged
                    merged = outer
                return merged
            file = inner
        raise Unsuitable(
            f"{self._file.path.name} uses the module {file.stem} as a value"
        )

    def _global(self, file: Path, name: str, node: ast.expr) -> ast.Name:
        context = getattr(node, "ctx", ast.Load())
        if file not in self._program.files:
            raise Unsuitable(f"cannot read {file.name}")
        return ast.Name(self._program.merged_name(file, name), context)

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


def _package(path: Path) -> Path | None:
    if path.is_dir() and (path / "__init__.py").is_file():
        return path / "__init__.py"
    return path if whose(str(path)) == "user" else None
