"""What the source does with an attribute: where its first value comes from, its uses.

A guard knows the value that an attribute had when it failed. Advice needs the value
that the program begins with, and whether a tensor can take the number's place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchproof.records import tree_of

_ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
_DEEPEST = 3  # local variables that are followed, one from another
# Functions that need a plain number, also if it is part of a computed value.
_CONVERSIONS = {"int", "float", "bool", "str", "range", "len", "format", "hash"}
_SYMBOLIC = {"min", "max", "abs", "float", "bool"}  # of numbers
_STARTS = ("__init__", "__post_init__")
_PASSES = ast.keyword | ast.Tuple | ast.List | ast.Starred | ast.Expr | ast.Compare


@dataclass(frozen=True)
class FirstValue:
    """The statement that gives an attribute its first value."""

    file: str
    line: int
    statement: str
    value: str  # source text, such as `0` or the name of a parameter
    # The type of the value: int, float or bool; None if the source does not show it.
    kind: type | None
    in_method: bool  # assigned to `self` in __init__, else in the body of the class
    in_module: bool  # the class is an nn.Module, as its bases show
    after_init: bool  # behind a call of the base class's __init__


@dataclass(frozen=True)
class PythonUse:
    """A use of an attribute that needs a plain Python value."""

    line: int
    code: str
    indexed: str = ""  # what the value indexes: `self.table` of `self.table[self.pos]`
    is_alias: bool = False  # a variable for it, which a change in place would change
    is_store: bool = False  # it sets the attribute


@dataclass(frozen=True)
class Reset:
    """A statement that gives an attribute another number: `self.pos = 0`."""

    file: str
    line: int
    statement: str
    target: str
    value: str


@dataclass(frozen=True)
class AttributeFacts:
    """The first value of an attribute, and how the code of its class uses it."""

    first: FirstValue | None = None
    python_use: PythonUse | None = None
    constant_use: PythonUse | None = None  # where a dynamic int would be a constant
    resets: tuple[Reset, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether a tensor can replace the number wherever the source is known."""
        known = self.first is not None
        return known and self.python_use is None and not self.resets


def attribute_facts(
    name: str, files: Iterable[str], *, line: int | None = None
) -> AttributeFacts:
    """The facts about `self.NAME`, or `OBJECT.NAME`.

    `line` is a line of the class, in the first of the files; without one, the only
    class of the files that sets the attribute is taken.
    """
    trees = {file: tree_of(file) for file in files}
    owners = _owners(trees, line)
    firsts = [list(_first_values(file, cls, name)) for file, cls in owners]
    firsts = [values for values in firsts if values]
    nearest = firsts[:1] if line is not None else firsts
    first = nearest[0][0] if [len(values) for values in nearest] == [1] else None
    if line is not None:  # another file knows the class only if it has a part of it
        parts = {file for file, _ in owners} | set(list(trees)[:1])
        trees = {file: tree for file, tree in trees.items() if file in parts}
    classes = None if line is None else [cls for _, cls in owners]
    every = (use for file, tree in trees.items() for use in _uses(file, tree, name))
    uses = [use for use in every if _is_of(use, classes)]
    return AttributeFacts(
        first,
        _first_use(uses),
        _first_use(uses, symbolic=True),
        tuple(reset for use in uses if (reset := _reset(use)) is not None),
    )


def global_needs_constant(name: str, files: Iterable[str]) -> bool:
    """Whether a use of a global makes a dynamic int a constant."""
    uses = [use for file in files for use in _uses_of_name(file, tree_of(file), name)]
    return _first_use(uses, symbolic=True) is not None


def _owners(
    trees: Mapping[str, ast.Module], line: int | None
) -> list[tuple[str, ast.ClassDef]]:
    """The class at a line of the first file and its bases; without a line, all."""
    every = [(file, cls) for file, tree in trees.items() for cls in _classes(tree)]
    if line is None:
        return every
    first = next(iter(trees), "")
    inside = [c for f, c in every if f == first and c.lineno <= line]
    inside = [c for c in inside if line <= (c.end_lineno or 0)]
    lineage = _lineage(inside[-1:], {cls.name: cls for _, cls in every})
    return [(f, c) for cls in lineage for f, c in every if c is cls]


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


def _first_values(file: str, cls: ast.ClassDef, name: str) -> Iterator[FirstValue]:
    """What __init__ assigns; else the default in the body of the class."""
    methods = [n for n in cls.body if isinstance(n, ast.FunctionDef)]
    starts = [m for m in methods if m.name in _STARTS]
    own = [
        _value_of(file, node, cls, start)
        for start in starts
        for node in ast.walk(start)
        if _assigns(node, f"self.{name}")
    ]
    if own:
        yield from own
        return
    for node in cls.body:
        if _assigns(node, name):
            yield _value_of(file, node, cls, None)


def _assigns(node: ast.AST, target: str) -> bool:
    if isinstance(node, ast.Assign):
        return [ast.unparse(t) for t in node.targets] == [target]
    is_set = isinstance(node, ast.AnnAssign) and node.value is not None
    return is_set and ast.unparse(node.target) == target  # type: ignore[attr-defined]


def _value_of(
    file: str, node: ast.AST, cls: ast.ClassDef, method: ast.FunctionDef | None
) -> FirstValue:
    assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    return FirstValue(
        file,
        node.lineno,
        ast.unparse(node),
        ast.unparse(node.value),
        _type_of(node.value) or _type_of_parameter(node.value, method),
        in_method=method is not None,
        in_module=any(ast.unparse(base).endswith("Module") for base in cls.bases),
        after_init=any(
            isinstance(each, ast.Attribute)
            and each.attr == "__init__"
            and each.lineno < node.lineno
            for each in (ast.walk(method) if method else ())
        ),
    )


def _type_of(node: ast.expr | None) -> type | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    value = node.value if isinstance(node, ast.Constant) else None
    return type(value) if type(value) in (int, float, bool) else None


def _type_of_parameter(value: ast.expr, method: ast.FunctionDef | None) -> type | None:
    """The type of the annotation or default of a parameter with this name."""
    if method is None or not isinstance(value, ast.Name):
        return None
    arguments = method.args
    placed = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(placed) - len(arguments.defaults))
    defaults += arguments.defaults
    pairs = [
        *zip(placed, defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for parameter, default in pairs:
        if parameter.arg == value.id:
            written = parameter.annotation
            named = written.id if isinstance(written, ast.Name) else ""
            known = {"int": int, "float": float, "bool": bool}
            return known.get(named) or _type_of(default)
    return None


# -- uses ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """An expression that reads the attribute, with the nodes around it."""

    file: str
    node: ast.expr
    around: tuple[ast.AST, ...]  # the innermost last

    @property
    def statement(self) -> ast.stmt | None:
        return next((n for n in reversed(self.around) if isinstance(n, ast.stmt)), None)


def _is_of(use: _Use, owners: list[ast.ClassDef] | None) -> bool:
    """Whether a use may be one of these classes: `self` of another class is not."""
    parent = use.around[-1]
    if isinstance(parent, ast.Call) and parent.func is use.node:
        return False  # a method: no number is called
    is_self = ast.unparse(use.node).startswith("self.")
    around = [n for n in use.around if isinstance(n, ast.ClassDef)]
    return owners is None or not is_self or not around or around[-1] in owners


def _uses(file: str, tree: ast.Module, name: str) -> list[_Use]:
    """The reads of `.NAME` in functions, and the assignments, but for __init__."""
    uses: list[_Use] = []

    def walk(node: ast.AST, around: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.FunctionDef) and node.name in _STARTS:
            return
        if isinstance(node, ast.Attribute) and node.attr == name:
            inside = any(isinstance(n, ast.FunctionDef) for n in around)
            if inside or isinstance(node.ctx, ast.Store):
                uses.append(_Use(file, node, around))
        for child in ast.iter_child_nodes(node):
            walk(child, (*around, node))

    walk(tree, ())
    return uses


def _first_use(uses: Iterable[_Use], *, symbolic: bool = False) -> PythonUse | None:
    found = (_python_use(use, symbolic=symbolic) for use in uses)
    return next((use for use in found if use is not None), None)


def _python_use(
    use: _Use, depth: int = 0, *, computed: bool = False, symbolic: bool = False
) -> PythonUse | None:
    """The place where a tensor could not replace the number; None if there is none.

    `computed`: the value may hold a tensor by then, which a call may take. `symbolic`:
    a dynamic int replaces it, which Python may compare and compute with.
    """
    if symbolic and _is_store(use):
        return None
    if _is_store(use):
        is_kept = _is_update(use) or _reset(use)
        return None if is_kept else replace(_at(use.around), is_store=True)
    node: ast.AST = use.node
    for at in range(len(use.around) - 1, -1, -1):
        parent = use.around[at]
        if symbolic and _decides(parent, node):
            return None
        if symbolic and _keeps_symbol(parent):
            node = parent
            continue
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, _ARITHMETIC):
            other = parent.right if parent.left is node else parent.left
            computed = computed or not _is_number(other)
        elif isinstance(parent, ast.AugAssign) and isinstance(parent.op, _ARITHMETIC):
            return _followed(
                parent, parent.target, use, depth, computed=True, symbolic=symbolic
            )
        elif isinstance(parent, ast.Assign):
            if node is use.node and depth == 0 and not symbolic:
                return replace(_at([parent]), is_alias=True)
            target = parent.targets[-1]
            return _followed(
                parent, target, use, depth, computed=computed, symbolic=symbolic
            )
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
        called = ast.unparse(node.func)
        return called in _SYMBOLIC or called.startswith("math.")
    return isinstance(node, ast.BoolOp)


def _is_store(use: _Use) -> bool:
    return isinstance(use.node.ctx, ast.Store)  # type: ignore[attr-defined]


def _reset(use: _Use) -> Reset | None:
    statement = use.statement
    if not _is_store(use) or not isinstance(statement, ast.Assign):
        return None
    if len(statement.targets) > 1 or _type_of(statement.value) is None:
        return None
    target, value = ast.unparse(use.node), ast.unparse(statement.value)
    return Reset(use.file, statement.lineno, ast.unparse(statement), target, value)


def _is_update(use: _Use) -> bool:
    """Whether an assignment computes the new value from the old one."""
    statement, text = use.statement, ast.unparse(use.node)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, _ARITHMETIC)
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.BinOp) and any(
        ast.unparse(part) == text for part in (value.left, value.right)
    )


def _takes_tensors(parent: ast.AST, node: ast.AST) -> bool:
    """Whether the code around a value works if it is a tensor."""
    if isinstance(parent, ast.Call):
        named = parent.func.id if isinstance(parent.func, ast.Name) else ""
        return named not in _CONVERSIONS
    if isinstance(parent, ast.Attribute | ast.Subscript):
        return parent.value is node
    return isinstance(parent, ast.Return)


def _negates(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not)


def _is_number(node: ast.expr) -> bool:
    """Whether an operand is a plain number, as far as its own text shows."""
    match node:
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case (
            ast.Constant()
            | ast.Subscript(value=ast.Attribute(attr="shape"))
            | ast.Call(func=ast.Name(id="len"))
            | ast.Call(func=ast.Attribute(attr="size" | "dim" | "numel"))
        ):
            return True
    return False


def _at(around: Sequence[ast.AST]) -> PythonUse:
    """The innermost whole expression or statement."""
    node = next(
        each
        for each in reversed(around)
        if isinstance(each, ast.expr | ast.stmt)
        and not isinstance(each, ast.Slice | ast.Tuple)
    )
    code = ast.unparse(node).split("\n")[0].removesuffix(":")
    indexed = ast.unparse(node.value) if isinstance(node, ast.Subscript) else ""
    return PythonUse(node.lineno, code, indexed)


def _followed(
    assignment: ast.stmt,
    target: ast.expr,
    use: _Use,
    depth: int,
    *,
    computed: bool,
    symbolic: bool,
) -> PythonUse | None:
    """A Python use of the variable that an expression is assigned to."""
    if ast.unparse(target) == ast.unparse(use.node):
        return None
    function = next(
        (n for n in reversed(use.around) if isinstance(n, ast.FunctionDef)), None
    )
    if not isinstance(target, ast.Name) or depth >= _DEEPEST or function is None:
        is_kept = symbolic and isinstance(target, ast.Attribute)
        return None if computed or is_kept else _at([assignment])
    after = (assignment.lineno, assignment.end_col_offset or 0)
    for later in _uses_of_name(use.file, function, target.id, after):
        found = _python_use(later, depth + 1, computed=computed, symbolic=symbolic)
        if found is not None:
            return found
    return None


def _uses_of_name(
    file: str, scope: ast.AST, name: str, after: tuple[int, int] = (0, 0)
) -> Iterator[_Use]:
    def walk(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[_Use]:
        match node:
            case ast.Name(id=found, ctx=ast.Load()) if found == name:
                if (node.lineno, node.col_offset) > after:
                    yield _Use(file, node, around)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, (*around, node))

    yield from walk(scope, ())
