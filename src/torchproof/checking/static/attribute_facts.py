"""Where the source makes each value of an attribute or a global a constant of a graph.

A setting lets torch make an int an input. That is of no use where the code needs the
number itself: as a count of a loop, in a text, as an index of a list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchproof.records import tree_of

_ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
_DEEPEST = 3  # local variables that are followed, one from another
# Functions that need a plain number, also if it is part of a computed value.
_CONVERSIONS = {"str", "range", "len", "format", "hash"}
# Functions that compute with a dynamic int. Others of math take only a constant.
_SYMBOLIC = {"min", "max", "abs", "float", "bool", "int", "round"}
_MATH = {"sqrt", "log2", "floor", "ceil", "sin", "cos", "tan", "sinh", "cosh", "tanh"}
_STARTS = ("__init__", "__post_init__")
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_PASSES = ast.keyword | ast.Tuple | ast.List | ast.Starred | ast.Expr | ast.Compare


@dataclass(frozen=True)
class ConstantUse:
    """A use of a number that makes each of its values a constant of the graph."""

    line: int
    code: str
    indexed: str = ""  # what the value indexes: `self.table` of `self.table[self.pos]`


def constant_use(
    source: str, files: Iterable[str], *, line: int | None = None
) -> ConstantUse | None:
    """The first such use of `self.NAME`, `OBJECT.NAME`, a global or an item of one.

    `line` is a line of the class of `self`, in the first of the files.
    """
    trees = {file: tree_of(file) for file in files}
    owners = None if line is None else _owners(trees, line)
    every = (use for tree in trees.values() for use in _uses(tree, source))
    found = (_constant_use(use) for use in every if _is_of(use, owners))
    return next((use for use in found if use is not None), None)


def first_value(name: str, files: Iterable[str]) -> str | None:
    """What `self.NAME` begins with, if only one class of the files says it, once."""
    classes = [cls for file in files for cls in _classes(tree_of(file))]
    values = [found for cls in classes if (found := list(_first_values(cls, name)))]
    return values[0][0] if [len(each) for each in values] == [1] else None


def _owners(trees: Mapping[str, ast.Module], line: int) -> list[ast.ClassDef]:
    """The class at a line of the first file, and its bases."""
    classes = [cls for tree in trees.values() for cls in _classes(tree)]
    first = next(iter(trees.values()), ast.Module([], []))
    inside = [c for c in _classes(first) if c.lineno <= line <= (c.end_lineno or 0)]
    return _lineage(inside[-1:], {cls.name: cls for cls in classes})


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    """The classes of a file, outer ones first."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _lineage(
    classes: list[ast.ClassDef], named: dict[str, ast.ClassDef]
) -> list[ast.ClassDef]:
    """A class and its bases, as far as the files contain them."""
    lineage: list[ast.ClassDef] = []
    pending = list(classes)
    while pending:
        cls = pending.pop(0)
        if cls not in lineage:
            lineage.append(cls)
            bases = (ast.unparse(base).rpartition(".")[2] for base in cls.bases)
            pending += [named[base] for base in bases if base in named]
    return lineage


def _first_values(cls: ast.ClassDef, name: str) -> Iterator[str]:
    """What __init__ assigns; else the default in the body of the class."""
    starts = [n for n in cls.body if getattr(n, "name", "") in _STARTS]
    own = [n for m in starts for n in ast.walk(m) if _assigns(n, f"self.{name}")]
    for node in own or [n for n in cls.body if _assigns(n, name)]:
        yield ast.unparse(node.value)  # type: ignore[attr-defined]


def _assigns(node: ast.AST, target: str) -> bool:
    if isinstance(node, ast.Assign):
        return [ast.unparse(t) for t in node.targets] == [target]
    is_set = isinstance(node, ast.AnnAssign) and node.value is not None
    return is_set and ast.unparse(node.target) == target  # type: ignore[attr-defined]


# -- uses ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """An expression that reads the number, with the nodes around it."""

    node: ast.expr
    around: tuple[ast.AST, ...]  # the innermost last


def _is_of(use: _Use, owners: list[ast.ClassDef] | None) -> bool:
    """Whether a use may be one of these classes: `self` of another class is not."""
    parent = use.around[-1]
    if isinstance(parent, ast.Call) and parent.func is use.node:
        return False  # a method: no number is called
    is_self = ast.unparse(use.node).startswith("self.")
    around = [n for n in use.around if isinstance(n, ast.ClassDef)]
    return owners is None or not is_self or not around or around[-1] in owners


def _uses(tree: ast.Module, source: str) -> list[_Use]:
    """The reads in functions but __init__: of `.NAME`, or of exactly this source."""
    uses: list[_Use] = []
    _, dot, name = source.rpartition(".")

    def walk(node: ast.AST, around: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.FunctionDef) and node.name in _STARTS:
            return
        is_read = isinstance(getattr(node, "ctx", None), ast.Load)
        if is_read and any(isinstance(each, _FUNCTIONS) for each in around):
            attribute = isinstance(node, ast.Attribute) and node.attr == name
            if attribute if dot else ast.unparse(node) == source:
                uses.append(_Use(node, around))  # type: ignore[arg-type]
        for child in ast.iter_child_nodes(node):
            walk(child, (*around, node))

    walk(tree, ())
    return uses


def _constant_use(
    use: _Use, depth: int = 0, *, computed: bool = False
) -> ConstantUse | None:
    """The place where torch makes the number a constant; None if there is none.

    `computed`: the value may be a tensor by then, which a call may take.
    """
    node: ast.AST = use.node
    for at in range(len(use.around) - 1, -1, -1):
        parent = use.around[at]
        if _decides(parent, node):
            return None
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, _ARITHMETIC):
            other = parent.right if parent.left is node else parent.left
            computed = computed or not _is_number(other)
        elif isinstance(parent, ast.AugAssign) and isinstance(parent.op, _ARITHMETIC):
            return _followed(parent, parent.target, use, depth, computed=True)
        elif isinstance(parent, ast.Assign):
            return _followed(parent, parent.targets[-1], use, depth, computed=computed)
        elif _keeps_symbol(parent):
            pass
        elif computed and _takes_tensors(parent, node):
            return None
        elif not (computed and isinstance(parent, _PASSES)) and not _negates(parent):
            return _at(use.around[: at + 1])
        node = parent
    return None


def _decides(parent: ast.AST, node: ast.AST) -> bool:
    """Whether code only takes a decision by a value: a graph for each outcome."""
    decides = isinstance(parent, ast.If | ast.IfExp | ast.Assert)
    return decides and parent.test is node  # type: ignore[attr-defined]


def _keeps_symbol(node: ast.AST) -> bool:
    """Whether Dynamo computes with a dynamic int here, and with what comes out."""
    if isinstance(node, ast.Compare):
        return not any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
    if isinstance(node, ast.Call):
        module, _, called = ast.unparse(node.func).rpartition(".")
        return called in {"": _SYMBOLIC, "math": _MATH}.get(module, ())
    return isinstance(node, ast.BoolOp)


def _takes_tensors(parent: ast.AST, node: ast.AST) -> bool:
    """Whether the code around a value works if it is a tensor."""
    if isinstance(parent, ast.Call):
        called = ast.unparse(parent.func)
        return called not in _CONVERSIONS and not called.startswith("math.")
    if isinstance(parent, ast.Attribute | ast.Subscript):
        return parent.value is node
    return isinstance(parent, ast.Return | ast.Lambda)


def _negates(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not)


def _is_number(node: ast.expr) -> bool:
    """Whether an operand is a plain number, as far as its own text shows."""
    match node:
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case (
            ast.Constant()
            | ast.Subscript(value=ast.Attribute(attr="shape"))
            | ast.Call(func=ast.Name(id="len"))
            | ast.Call(func=ast.Attribute(attr="size" | "dim" | "numel"))
        ):
            return True
    return False


def _at(around: Sequence[ast.AST]) -> ConstantUse:
    """The innermost whole expression or statement."""
    node = next(
        each
        for each in reversed(around)
        if isinstance(each, ast.expr | ast.stmt)
        and not isinstance(each, ast.Slice | ast.Tuple)
    )
    code = ast.unparse(node).split("\n")[0].removesuffix(":")
    indexed = ast.unparse(node.value) if isinstance(node, ast.Subscript) else ""
    return ConstantUse(node.lineno, code, indexed)


def _followed(
    assignment: ast.stmt, target: ast.expr, use: _Use, depth: int, *, computed: bool
) -> ConstantUse | None:
    """Such a use of the variable that an expression is assigned to."""
    if ast.unparse(target) == ast.unparse(use.node):
        return None
    functions = [n for n in use.around if isinstance(n, _FUNCTIONS)]
    if not isinstance(target, ast.Name) or depth >= _DEEPEST:
        kept = computed or isinstance(target, ast.Attribute)
        return None if kept else _at([assignment])
    after = (assignment.lineno, assignment.end_col_offset or 0)
    for later in _uses_of_name(functions[-1], target.id, after):
        found = _constant_use(later, depth + 1, computed=computed)
        if found is not None:
            return found
    return None


def _uses_of_name(scope: ast.AST, name: str, after: tuple[int, int]) -> Iterator[_Use]:
    def walk(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[_Use]:
        match node:
            case ast.Name(id=found, ctx=ast.Load()) if found == name:
                if (node.lineno, node.col_offset) > after:
                    yield _Use(node, around)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, (*around, node))

    yield from walk(scope, ())
