"""What of a module is reached from some of its names; the rest is taken away."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator

from torchproof.packs.repro.programs.scopes import MODULE, Names, parameters, spelled

# What a repro may import: all of it comes with Python or with torch.
AVAILABLE = frozenset(sys.stdlib_module_names) | {"torch", "functorch", "numpy"}
# A statement of these changes how a program talks, not what it computes.
_TALK = ("logging.basicConfig", "warnings.filterwarnings", "warnings.simplefilter")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef


def shaken(tree: ast.Module, roots: Iterable[str]) -> ast.Module:
    """The statements and class members that the roots need, without annotations."""
    tree = without_annotations(tree)
    tree.body = [node for node in tree.body if not _is_for_others(node)]
    wanted = set(roots)
    while True:
        _keep(tree, wanted)
        if not _drop_members(tree):
            return tree


def foreign(tree: ast.Module) -> list[str]:
    """The packages that a module imports and that a repro must do without."""
    found = set()
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in guarded:  # `except ImportError` says what is done without it
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").partition(".")[0])
    return sorted(found - AVAILABLE)


def _keep(tree: ast.Module, roots: set[str]) -> None:
    """Leaves what the roots reach, and what has an effect on nothing else."""
    uses = _uses(tree)
    kept = set(roots)
    left = list(tree.body)
    chosen: set[int] = set()
    while True:
        reached = [
            node
            for node in left
            if id(node) not in chosen and _is_reached(node, kept, uses)
        ]
        if not reached:
            break
        for node in reached:
            chosen.add(id(node))
            kept |= uses[id(node)][1]
    defined = set().union(*(uses[i][0] for i in chosen)) if chosen else set()
    for node in left:
        bound, used = uses[id(node)]
        if not bound and used <= defined | kept:
            chosen.add(id(node))
    for node in left:  # what those need of imports
        if id(node) in chosen:
            kept |= uses[id(node)][1]
    tree.body = [
        node
        for node in left
        if id(node) in chosen or (_is_import(node) and uses[id(node)][0] & kept)
    ]
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [a for a in node.names if _bound_by(a) in kept]


def _is_reached(
    node: ast.stmt, kept: set[str], uses: dict[int, tuple[set[str], set[str]]]
) -> bool:
    return bool(uses[id(node)][0] & kept)


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _uses(tree: ast.Module) -> dict[int, tuple[set[str], set[str]]]:
    """Of each statement: the globals it binds, and those it spells."""
    names = Names(tree)
    owner: dict[int, int] = {
        id(inner): id(node) for node in tree.body for inner in ast.walk(node)
    }
    found: dict[int, tuple[set[str], set[str]]] = {
        id(node): (set(), set()) for node in tree.body
    }
    for spelling in names.spellings:
        binding = names.binding(spelling)
        if binding is None or binding.scope != MODULE:
            continue
        bound, used = found[owner[id(spelling.node)]]
        used.add(binding.name)
        if spelling.scope.number == MODULE and not _is_read(spelling.node):
            bound.add(binding.name)
    return found


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _drop_members(tree: ast.Module) -> bool:
    """Methods that nothing spells; whether there were any."""
    dropped = False
    everything = [name for node in tree.body for name in spelled(node)]
    spoken = set(everything)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        kept = [m for m in node.body if not _is_unused(m, spoken)]
        if len(kept) < len(node.body):
            node.body, dropped = kept or [ast.Pass()], True
    return dropped


def _is_unused(member: ast.stmt, spoken: set[str]) -> bool:
    """Whether a method can go; `forward` and `__call__` are called without a name."""
    if not isinstance(member, _Definition) or member.name in {"forward", "backward"}:
        return False
    special = member.name.startswith("__") and member.name.endswith("__")
    return not special and member.name not in spoken and not member.decorator_list


def _is_for_others(node: ast.stmt) -> bool:
    """What is there for people, type checkers, or a run of the file as a program."""
    if isinstance(node, ast.Expr):
        call = node.value.func if isinstance(node.value, ast.Call) else None
        return isinstance(node.value, ast.Constant) or (
            call is not None and ast.unparse(call) in _TALK
        )
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        return "__name__" in test or test.endswith("TYPE_CHECKING")
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    return isinstance(node, ast.Pass)


def without_annotations(tree: ast.Module) -> ast.Module:
    """No annotations and docstrings; the fields of a dataclass are of type object."""
    _Bare().visit(tree)
    return ast.fix_missing_locations(tree)


class _Bare(ast.NodeTransformer):
    def __init__(self) -> None:
        self._keeps = False  # inside a class whose annotations are its fields

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        before = self._keeps
        marks = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
        self._keeps = any(
            word in marks for word in ("dataclass", "NamedTuple", "TypedDict", "Output")
        )
        node.bases = [b for b in node.bases if not _is_generic(b)]
        self.generic_visit(node)
        self._keeps = before
        return _without_text(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self._keeps = self._keeps, False
        node.returns = None
        for argument in parameters(node):
            argument.annotation = None
        self.generic_visit(node)
        self._keeps = before
        return _without_text(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if self._keeps:
            if "ClassVar" not in ast.unparse(node.annotation):
                node.annotation = ast.Name("object", ast.Load())
            return node
        if node.value is None:
            return None
        return ast.Assign([node.target], node.value, lineno=0)


def _is_generic(base: ast.expr) -> bool:
    return ast.unparse(base).partition("[")[0] in {"Generic", "Protocol"}


def _without_text(node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
    """Without a docstring, and never empty."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        node.body = node.body[1:]
    node.body = node.body or [ast.Pass()]
    return node


def without_dead_stores(tree: ast.Module) -> ast.Module:
    """No names and attributes that are given a value, in a function, and never read."""
    while True:
        read = set(_read(tree))
        dropped = False
        for node in ast.walk(tree):
            if isinstance(node, _Definition):
                kept = [each for each in node.body if not _is_dead(each, read)]
                dropped |= len(kept) < len(node.body)
                node.body = kept or [ast.Pass()]
        if not dropped:
            return tree


def _read(tree: ast.AST) -> Iterator[str]:
    """Names and attributes that are read, or that other functions may read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f".{node.value}"
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names


def _is_dead(node: ast.stmt, read: set[str]) -> bool:
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    if isinstance(target, ast.Attribute):  # of torch's own: what is set may steer it
        return f".{target.attr}" not in read and _root(target) not in {"torch", "self"}
    return isinstance(target, ast.Name) and target.id not in read


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return ast.unparse(node)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            yield node
