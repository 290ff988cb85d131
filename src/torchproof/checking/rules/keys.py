"""The key of a finding at a line: its code without names of variables and values.

It is part of the finding's identity, so it stays the same when variables are renamed,
lines move, or constants change. Of equal code in one function, the second and later
ones get a number.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import re
from collections.abc import Iterable, Iterator

from torchproof.checking.static.source import children, walk
from torchproof.records import Frame, source_line, tree_of

_LONGEST = 300  # characters of a key
_KEPT = {"self", "cls", *vars(builtins)}  # names that are no variables
_MODULES = {"torch", "nn", "F", "np", "numpy", "math"}  # where no import is readable
_DTYPE = re.compile(r"b?float\d*|u?int\d+|complex\d+|bool|half|double|long")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def of_frame(frame: Frame) -> str:
    """The key of the code that a traceback underlines, else of its statement."""
    tree = tree_of(frame.file)
    text = source_line(frame.file, frame.line)
    if not tree.body or text.strip() != frame.code:
        return _of_text(frame.expression or frame.code)
    indent = len(text) - len(text.lstrip())
    columns = frame.columns and tuple(
        len(text[: indent + column].encode()) for column in frame.columns
    )
    node = _at(tree, frame.line, columns)
    return "" if node is None else _key(node, tree)


def of_node(node: ast.AST, tree: ast.Module) -> str:
    """The key of a node of a parsed file."""
    return _key(_head(node), tree)


def of_name(source: str, function: Frame | None) -> str:
    """What a guard checks, with the position of a parameter instead of its name.

    Other local variables, which pass from one part of a function to the next, have no
    name in it. `self.step` and globals keep theirs.
    """
    root, rest = re.fullmatch(r"(\w*)(.*)", source, re.DOTALL).groups()  # type: ignore[union-attr]
    if function is None or not root or root in _KEPT:
        return source
    file = _file(tree_of(function.file))
    around = file.around(function.line)
    if not around:
        return source
    names = [each.arg for each in _parameters(around[-1])]
    if root in names:
        return f"argument {names.index(root)}{rest}"
    return f"_{rest}" if root in file.variables(around) else source


def numbered(keys: Iterable[tuple[object, tuple[object, ...]]]) -> list[int]:
    """For each pair of a key and a place: its number among equal keys, by place."""
    every = list(keys)
    order = sorted(range(len(every)), key=lambda i: (every[i][1], i))
    counts: dict[object, int] = {}
    numbers = [0] * len(every)
    for index in order:
        key = every[index][0]
        counts[key] = numbers[index] = counts.get(key, 0) + 1
    return numbers


# -- finding the node ------------------------------------------------------------------


def _at(tree: ast.Module, line: int, columns: tuple[int, ...] | None) -> ast.AST | None:
    """The expression at the columns of a line; without them, that of its statement."""
    statement = _statement(tree, line)
    if columns is None or statement is None:
        return statement and _head(statement)
    start, end = columns
    around = [
        node
        for node in walk(statement)
        if isinstance(node, ast.expr)
        and (node.lineno, node.col_offset) <= (line, start)
        and (line, end) <= (node.end_lineno or line, node.end_col_offset or 0)
    ]
    node = min(around, key=_extent, default=None)
    if node is None or isinstance(node, ast.Constant):
        return _head(statement)  # the value alone does not say what is done with it
    return node


def _extent(node: ast.expr) -> tuple[int, int]:
    lines = (node.end_lineno or node.lineno) - node.lineno
    return lines, (node.end_col_offset or 0) - (node.col_offset if not lines else 0)


def _statement(tree: ast.Module, line: int) -> ast.stmt | None:
    """The innermost statement at a line."""
    found: ast.stmt | None = None
    level: list[ast.AST] = [tree]
    while level:
        inner = [
            child
            for node in level
            for child in children(node)
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
            and _first_line(child) <= line <= _last_line(child)
        ]
        found = next((n for n in inner if isinstance(n, ast.stmt)), found)
        level = list(inner)
    return found


def _first_line(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return node.pattern.lineno
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    lines: list[int] = [each.lineno for each in decorators]
    return min([getattr(node, "lineno", 0), *lines])


def _last_line(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return node.body[-1].end_lineno or node.body[-1].lineno
    first: int = getattr(node, "lineno", 0)
    return getattr(node, "end_lineno", None) or first


def _head(node: ast.AST) -> ast.AST:
    """The expression that a statement is about: its condition or its value."""
    match node:
        case ast.If() | ast.While() | ast.Assert():
            return node.test
        case ast.For() | ast.AsyncFor():
            return node.iter
        case ast.With() | ast.AsyncWith():
            return node.items[0].context_expr
        case ast.Expr() | ast.Await() | ast.Starred() | ast.NamedExpr():
            return _head(node.value)
        case ast.Return() if node.value is not None:
            return _head(node.value)
        case ast.Raise() if node.exc is not None:
            return node.exc
        case ast.Assign() if all(map(_is_variable, node.targets)):
            return _head(node.value)
    return node


def _is_variable(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(_is_variable, node.elts))
    return isinstance(node, ast.Name)


# -- the text of a node ----------------------------------------------------------------


def _key(node: ast.AST, tree: ast.Module) -> str:
    file = _file(tree)
    line = getattr(node, "lineno", 0)
    around = file.around(line)
    if not tree.body:
        return _shortened(_text(node, _Unknown(node)))
    variables = file.variables(around)
    text = _text(node, variables)
    number = file.number(node, text, around)
    return _shortened(text if number == 1 else f"{text} #{number}")


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    # The end decides as well: it may be all that differs.
    half = _LONGEST // 2
    return f"{text[:half]}...{text[-half:]}"


def _of_text(code: str) -> str:
    """The key of code whose file cannot be read."""
    closing = {"(": ")", "[": "]", "{": "}"}
    for text in (code, f"{code}...{closing.get(code[-1:], '')}", f"{code} pass"):
        try:
            statements = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if statements:
            node = _head(statements[0])
            return _shortened(_text(node, _Unknown(node)))
    return _shortened(re.sub(r"'[^']*'|\"[^\"]*\"|\b\d[\w.]*", "#", code))


class _Unknown(frozenset[str]):
    """The variables of code whose function is unknown: all names but those called."""

    def __new__(cls, node: ast.AST) -> _Unknown:
        called = {
            each.func.id
            for each in walk(node)
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        }
        names = {each.id for each in walk(node) if isinstance(each, ast.Name)}
        return super().__new__(cls, names - called - _KEPT - _MODULES)


def _text(node: ast.AST, variables: frozenset[str]) -> str:
    """A node as text, with `_` for variables and `#` for values."""
    try:
        return _written(node, variables)
    except RecursionError:
        return type(node).__name__


def _written(node: ast.AST, variables: frozenset[str]) -> str:
    def written(inner: ast.AST) -> str:
        return _written(inner, variables)

    if _is_value(node):
        return "#"
    match node:
        case ast.Name():
            return "_" if node.id in variables else node.id
        case ast.arg():
            return "_"
        case ast.Attribute():
            return f"{written(node.value)}.{node.attr}"
        case ast.Call():
            inside = ", ".join(map(written, (*node.args, *node.keywords)))
            return f"{written(node.func)}({inside})"
        case ast.keyword():
            return f"{node.arg or '**'}={written(node.value)}"
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return f"{written(node.value)}[{name!r}]"
        case ast.Subscript():
            return f"{written(node.value)}[{written(node.slice)}]"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return "def"  # the function, or the class around it, is named beside
        case ast.For() | ast.While() | ast.If() | ast.With() | ast.Try():
            return type(node).__name__
    parts = [part for _, value in ast.iter_fields(node) for part in _parts(value)]
    inside = ", ".join(p if isinstance(p, str) else written(p) for p in parts)
    return f"{type(node).__name__}({inside})" if inside else type(node).__name__


def _parts(value: object) -> Iterator[ast.AST | str]:
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, str) or (
            isinstance(item, ast.AST) and not isinstance(item, ast.expr_context)
        ):
            yield item


def _is_value(node: ast.AST) -> bool:
    """Whether a node is a constant, or consists of constants."""
    match node:
        case ast.Constant() | ast.JoinedStr():
            return True
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            return _is_value(node.operand)
        case ast.Tuple() | ast.List() | ast.Set():
            return all(map(_is_value, node.elts))
        case ast.Dict():
            return all(_is_value(n) for n in (*node.keys, *node.values) if n)
        case ast.Attribute(value=ast.Name(id="torch")):
            return _DTYPE.fullmatch(node.attr) is not None
    return False


# -- scopes ----------------------------------------------------------------------------


class _File:
    """The functions of a file, and the variables in each."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        functions = [n for n in walk(tree) if isinstance(n, _FUNCTIONS)]
        self._functions = sorted(functions, key=_first_line)
        self._bound = functools.cache(_bound)
        self._numbers: dict[object, dict[str, list[ast.AST]]] = {}

    def around(self, line: int) -> tuple[Function, ...]:
        """The functions around a line, outermost first."""
        return tuple(
            f for f in self._functions if _first_line(f) <= line <= _last_line(f)
        )

    def variables(self, around: tuple[Function, ...]) -> frozenset[str]:
        """The names of the variables at a place; a script's own ones count too."""
        scopes = (self._tree, *around)
        return frozenset().union(*map(self._bound, scopes)) - _KEPT

    def number(self, node: ast.AST, text: str, around: tuple[Function, ...]) -> int:
        """Which one it is of the equal expressions in its function."""
        scope = around[-1] if around else self._tree
        label = _label(node)
        places = self._numbers.get((scope, label))
        if places is None:
            variables = self.variables(around)
            places = self._numbers[scope, label] = {}
            for each in _own(scope):
                if _label(each) == label:
                    places.setdefault(_text(each, variables), []).append(each)
        same = sorted({_position(each) for each in places.get(text, ())})
        return same.index(_position(node)) + 1 if _position(node) in same else 1


@functools.lru_cache(maxsize=64)
def _file(tree: ast.Module) -> _File:
    return _File(tree)


def _label(node: ast.AST) -> tuple[str, str]:
    """What equal expressions have in common; quicker to compare than their texts."""
    called = node.func if isinstance(node, ast.Call) else node
    return type(node).__name__, getattr(called, "attr", "")


def _position(node: ast.AST) -> tuple[int, int, int, int]:
    names = ("lineno", "col_offset", "end_lineno", "end_col_offset")
    return tuple(getattr(node, name, 0) or 0 for name in names)  # type: ignore[return-value]


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of the functions in it."""
    waiting = [scope]
    while waiting:
        for node in children(waiting.pop()):
            yield node
            if not isinstance(node, _FUNCTIONS):
                waiting.append(node)


def _bound(scope: ast.AST) -> frozenset[str]:
    """The names that a function assigns, with its parameters; not imported ones.

    Of a module: what its own statements assign, without functions and classes.
    """
    parameters = _parameters(scope) if isinstance(scope, _FUNCTIONS) else []
    names, others = {each.arg for each in parameters}, set[str]()
    for node in _own(scope):
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(node.id)
            case ast.arg():  # of a lambda
                names.add(node.arg)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                names.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                (others if isinstance(scope, ast.Module) else names).add(node.name)
            case ast.Global():
                others.update(node.names)
            case ast.Import() | ast.ImportFrom():
                others |= {a.asname or a.name.split(".")[0] for a in node.names}
    return frozenset(names - others)


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    extra = [each for each in (arguments.vararg, arguments.kwarg) if each]
    return list(
        itertools.chain(
            arguments.posonlyargs, arguments.args, arguments.kwonlyargs, extra
        )
    )
