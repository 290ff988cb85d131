"""A file and the local files that it imports, as one module.

What is installed stays an import. Names that two files share are told apart; those of
the file that comes in keep theirs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.packs.repro.programs.scopes import MODULE, Binding, Names
from torchproof.records import located, whose


class Unsuitable(Exception):
    """Why no program can be made of a target, in one sentence."""


@dataclass(frozen=True)
class Imported:
    """What a name stands for: a local file, or something that it defines."""

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
    """One module, and what a name of the file it began with is called in it."""

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
        return self._program.spelling(self._root, name)


def merged(path: Path) -> Merged:
    """The program that begins in a file, or `Unsuitable`."""
    root = path.resolve()
    program = _Program(root.parent)
    program.read(root)
    program.name_all(root)
    return Merged(program.written(), program, root)


class _Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[Path, File] = {}  # what a file imports comes before it
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
            raise Unsuitable(f"{path.name} cannot be read: {error}") from None
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        for node in imports:
            self._spell_out_star(node, path)
        file = File(path, tree, Names(tree))
        for spelling in file.names.spellings:
            if isinstance(spelling.node, ast.alias):
                binding = file.names.binding(spelling)
                found = self._local(spelling.node, tree, path)
                if binding is not None and found is not None:
                    file.imported[binding] = found
                    self.read_all(found)
        self.files[path] = file

    def read_all(self, found: Imported) -> None:
        if found.file.is_file():
            self.read(found.file)

    def _spell_out_star(self, node: ast.ImportFrom, path: Path) -> None:
        home = self._home(node, path)
        if home is None or [alias.name for alias in node.names] != ["*"]:
            return
        self.read(home)
        public = [n for n in sorted(self.files[home].globals) if n[0] != "_"]
        node.names = [ast.alias(name) for name in public]

    def _local(self, alias: ast.alias, tree: ast.Module, path: Path) -> Imported | None:
        """What an import of something local names; None for what is installed."""
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
        """The local file or folder that `from ... import` reads from."""
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
        found = located(name, [str(self.folder)])
        if found is None:  # a folder without an __init__.py
            found = self.folder.joinpath(*name.split("."))
            if not found.is_dir():
                return None
        own = whose(str(found)) == "user"
        return found.resolve() if own else None

    # -- naming ------------------------------------------------------------------------

    def name_all(self, root: Path) -> None:
        """A name for all that a file defines; locals must not come to hide one."""
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
                    given = name if free else self._free(f"{file.path.stem}_{name}")
                    self._names[identity], self._taken[given] = given, identity

    def _free(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def _identity(self, file: File, name: str) -> object:
        """The same for one import that two files make, else the file's own."""
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

    def spelling(self, path: Path, name: str, *, depth: int = 0) -> str:
        """What a global of a file is called in the whole."""
        file = self.files[path]
        found = file.imported.get(Binding(MODULE, name))
        if found is None:
            return self._names.get(self._identity(file, name), name)
        if found.attribute is None or depth > 20 or found.file not in self.files:
            raise Unsuitable(f"{path.name} hands the module {name} around as a value")
        return self.spelling(found.file, found.attribute, depth=depth + 1)

    # -- writing -----------------------------------------------------------------------

    def written(self) -> ast.Module:
        imports: dict[str, ast.stmt] = {}
        body: list[ast.stmt] = []
        for file in self.files.values():
            _Rewriting(self, file).visit(file.tree)
            for statement in file.tree.body:
                if not isinstance(statement, ast.Import | ast.ImportFrom):
                    body.append(statement)
                elif getattr(statement, "module", "") != "__future__":
                    imports.setdefault(ast.unparse(statement), statement)
        tree = ast.Module([*imports.values(), *body], [])
        return ast.fix_missing_locations(tree)


class _Rewriting(ast.NodeTransformer):
    """One file's names as the whole has them; what it imports locally is gone."""

    def __init__(self, program: _Program, file: File) -> None:
        self._program, self._file = program, file
        names = file.names
        self._bindings = {id(s.node): names.binding(s) for s in names.spellings}
        names.rename(self._name)

    def _name(self, binding: Binding) -> str | None:
        if binding in self._file.imported or binding.scope != MODULE:
            return None
        return self._program.spelling(self._file.path, binding.name)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return self._without_local(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return self._without_local(node)

    def _without_local(self, node: ast.Import | ast.ImportFrom) -> ast.AST | None:
        node.names = [a for a in node.names if self._found(a) is None]
        return node if node.names else None

    def _found(self, node: ast.AST) -> Imported | None:
        binding = self._bindings.get(id(node))
        return self._file.imported.get(binding) if binding else None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = self._found(node)
        if found is None:
            return node
        if found.attribute is None:
            raise Unsuitable(
                f"{self._file.path.name} hands the module {node.id} around as a value"
            )
        return self._global(found.file, found.attribute, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        chain: list[ast.Attribute] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            chain.append(base)
            base = base.value
        found = self._found(base)
        if found is None or found.attribute is not None:
            return self.generic_visit(node)
        file = found.file
        while chain:
            step = chain.pop()
            inner = _submodule(file, step.attr)
            if inner is None:
                answer: ast.expr = self._global(file, step.attr, step)
                for left in reversed(chain):
                    left.value, answer = answer, left
                return answer
            file = inner
        raise Unsuitable(f"{self._file.path.name} hands the module {file.stem} around")

    def _global(self, file: Path, name: str, node: ast.expr) -> ast.Name:
        context = getattr(node, "ctx", ast.Load())
        if file not in self._program.files:
            raise Unsuitable(f"{file.name} is not a file that can be read")
        return ast.Name(self._program.spelling(file, name), context)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        # A block of nothing but local imports.
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node


def _submodule(home: Path, name: str) -> Path | None:
    """The file of a module inside a package; None where the name is no module."""
    folder = home.parent if home.name == "__init__.py" else home
    if not folder.is_dir():
        return None
    for inner in (folder / f"{name}.py", folder / name / "__init__.py", folder / name):
        if inner.exists():
            return inner
    return None


def _package(found: Path) -> Path | None:
    if found.is_dir() and (found / "__init__.py").is_file():
        return found / "__init__.py"
    return found if whose(str(found)) == "user" else None
