"""What the source says about a line: facts that decide whether advice applies to it.

Also finds the settings of the compiler and the marks of sizes that a file has already.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchproof.records import tree_of

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_WITH = ast.With | ast.AsyncWith
_LOOPS = ast.For | ast.AsyncFor | ast.While
_OF_NUMBERS = {"self", "round", "int", "float", "min", "max"}
_MARKS = {"mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"}


@dataclass(frozen=True)
class LineFacts:
    """What holds for the code at a line; nothing, if the file cannot be read."""

    is_readable: bool = False
    is_unused: bool = False  # a statement whose value nothing uses
    is_test: bool = False  # the condition of an `if`, a `while` or `a if test else b`
    with_line: int | None = None  # of the innermost `with` of the function around it
    loop_line: int | None = None
    try_line: int | None = None
    # It reads nothing that the function computed before: a caller can evaluate it.
    from_arguments: bool = False
    is_entry: bool = False  # in a `forward`, or a function that is compiled where it is


def facts_at(file: str, line: int, expression: str = "") -> LineFacts:
    """The facts about an expression at a line; without one, about the statement."""
    path = path_to(tree_of(file), line)
    statement = next((n for n in reversed(path) if isinstance(n, ast.stmt)), None)
    if statement is None:
        return LineFacts()
    function = next((n for n in reversed(path) if isinstance(n, _FUNCTIONS)), None)
    inside = path[path.index(function) + 1 :] if function in path else path
    code = parsed(expression) or head(statement)
    return LineFacts(
        is_readable=True,
        is_unused=isinstance(statement, ast.Expr)
        and not isinstance(statement.value, ast.Yield | ast.YieldFrom | ast.Await),
        is_test=_is_test(statement, code),
        with_line=_last_line(inside, _WITH),
        loop_line=_last_line(inside, _LOOPS),
        try_line=_last_line([n for n in inside if _is_guarded(n, line)], ast.Try),
        from_arguments=isinstance(function, ast.FunctionDef)
        and _reads_arguments(code, statement, function),
        is_entry=isinstance(function, ast.FunctionDef) and _is_entry(function),
    )


def _is_entry(function: ast.FunctionDef) -> bool:
    decorators = [ast.unparse(each) for each in function.decorator_list]
    return function.name == "forward" or any("compile" in each for each in decorators)


def path_to(tree: ast.AST, line: int) -> list[ast.AST]:
    """The nodes around the innermost statement, or lambda, at a line."""
    path: list[ast.AST] = []
    node: ast.AST | None = tree
    while node is not None:
        path.append(node)
        node = next((n for n in _blocks(node) if _covers(n, line)), None)
    return path


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child


def _covers(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return any(_covers(each, line) for each in node.body)
    assert isinstance(node, ast.stmt | ast.ExceptHandler)
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return first <= line <= (node.end_lineno or first)


def _last_line(nodes: list[ast.AST], kinds: object) -> int | None:
    lines = [n.lineno for n in nodes if isinstance(n, kinds)]  # type: ignore[arg-type, attr-defined]
    return lines[-1] if lines else None


def _is_guarded(node: ast.AST, line: int) -> bool:
    """Whether a `try` would catch what this line raises."""
    return isinstance(node, ast.Try) and any(_covers(n, line) for n in node.body)


def parsed(expression: str) -> ast.expr | None:
    """The expression; None if the text is a part of one, or shortened."""
    if "..." in expression:
        return None
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def nodes_of(code: str) -> tuple[ast.AST, ...]:
    """The nodes of a line, outer ones first; none if it is a part of a statement."""
    try:
        return tuple(ast.walk(ast.parse(code + " pass" * code.endswith(":"))))
    except (SyntaxError, ValueError):
        return ()


def tested(code: str) -> str | None:
    """The test of the only `a if test else b` in a line; None if it has none."""
    tests = [node.test for node in nodes_of(code) if isinstance(node, ast.IfExp)]
    return ast.unparse(tests[0]) if len(tests) == 1 else None


def head(statement: ast.stmt) -> ast.AST:
    """The part of a statement that runs at its own line, without its body."""
    for name in ("test", "iter", "value"):
        if isinstance(part := getattr(statement, name, None), ast.AST):
            return part
    if isinstance(statement, _WITH):
        return ast.Tuple([item.context_expr for item in statement.items], ast.Load())
    return statement


def _is_test(statement: ast.stmt, code: ast.AST) -> bool:
    tests = [
        node.test
        for node in ast.walk(statement)
        if isinstance(node, ast.If | ast.While | ast.IfExp)
    ]
    text = ast.dump(code)
    return any(ast.dump(part) == text for test in tests for part in ast.walk(test))


def _reads_arguments(
    code: ast.AST, statement: ast.stmt, function: ast.FunctionDef
) -> bool:
    changed = set(_changed_before(statement, function))
    return not any(
        ast.unparse(node) in changed
        for node in ast.walk(code)
        if isinstance(node, ast.Name | ast.Attribute)
    )


def _changed_before(statement: ast.stmt, function: ast.FunctionDef) -> Iterator[str]:
    """The names and attributes that a function sets, or changes in place, until then.

    In a loop, the statements after it also run before.
    """
    last = max(
        [
            statement.lineno,
            *(
                node.end_lineno or 0
                for node in ast.walk(function)
                if isinstance(node, _LOOPS) and _covers(node, statement.lineno)
            ),
        ]
    )
    for node in ast.walk(function):
        if isinstance(node, ast.arg) or getattr(node, "lineno", last + 1) > last:
            continue
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(
            node.ctx, ast.Store | ast.Del
        ):
            target = node.value if isinstance(node, ast.Subscript) else node
            yield ast.unparse(target)
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr.endswith("_"):
            yield ast.unparse(called.value)


# -- uses of a value -------------------------------------------------------------------


def is_aside(file: str, line: int, source: re.Pattern[str]) -> bool:
    """Whether a function makes nothing else of the values of a source than it reports.

    It may compute with them alone, keep them in an object, and call functions with
    them whose results nothing uses.
    """
    path = path_to(tree_of(file), line)
    function = next((n for n in reversed(path) if isinstance(n, _FUNCTIONS)), None)
    names: set[str] = set()
    for statement in sorted(_statements(function), key=lambda each: each.lineno):
        code = head(statement)
        read = {each.id for each in ast.walk(code) if isinstance(each, ast.Name)}
        text = ast.unparse(code)
        if not (read & names or source.search(text)):
            continue
        if isinstance(statement, ast.Expr) and not re.search(r"_\(", text):
            continue
        rest = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", source.sub("0", text)))
        assigns = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
        if not assigns or rest - names - _OF_NUMBERS:
            return False
        names |= _set_in(statement)
    return function is not None


def _statements(function: ast.AST | None) -> Iterator[ast.stmt]:
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.stmt) and node is not function:
            yield node


def _set_in(statement: ast.AST) -> set[str]:
    """The local variables that a statement sets."""
    match statement:
        case ast.Assign(targets=targets):
            nodes = [each for target in targets for each in ast.walk(target)]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            nodes = [target]
        case _:
            nodes = []
    names = (node for node in nodes if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


# -- what a file has already -----------------------------------------------------------


def sets(file: str, name: str, value: str) -> bool:
    """Whether a file gives a setting this value: `torch._dynamo.config.NAME = value`.

    Also by `config.patch(NAME=value)`, and by `config.NAME.add(value)`.
    """
    short = name.rpartition(".config.")[2] or name
    return (short, value) in _settings_in(tree_of(file))


@functools.lru_cache(maxsize=256)
def _settings_in(tree: ast.Module) -> frozenset[tuple[str, str]]:
    """The settings of a file, by their names behind `config.`, and their values."""
    return frozenset(
        (name, ast.unparse(value))
        for node in ast.walk(tree)
        for name, value in _set_by(node)
    )


def _set_by(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and "config." in ast.unparse(target):
                yield ast.unparse(target).rpartition("config.")[2], node.value
    called = node.func if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or not isinstance(called, ast.Attribute):
        return
    if called.attr == "patch":
        yield from ((k.arg, k.value) for k in node.keywords if k.arg)
        if len(node.args) == 2 and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value), node.args[1]
    if called.attr == "add" and "config." in ast.unparse(called.value):
        name = ast.unparse(called.value).rpartition("config.")[2]
        yield from ((name, each) for each in node.args)


@dataclass(frozen=True)
class WrittenMark:
    """A call in the source that marks sizes of a tensor."""

    file: str
    line: int
    code: str
    how: str
    tensor: str
    dimensions: tuple[int, ...]


def marks_in(file: str) -> tuple[WrittenMark, ...]:
    """The calls of a file that mark sizes, from the first line to the last."""
    return _marks_in(tree_of(file), file)


@functools.lru_cache(maxsize=256)
def _marks_in(tree: ast.Module, file: str) -> tuple[WrittenMark, ...]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return tuple(_marks(sorted(calls, key=lambda call: call.lineno), file))


def _marks(calls: list[ast.Call], file: str) -> Iterator[WrittenMark]:
    for node in calls:
        called = node.func
        how = called.attr if isinstance(called, ast.Attribute) else ""
        how = called.id if isinstance(called, ast.Name) else how
        if how in _MARKS and node.args:
            index = node.args[1] if len(node.args) > 1 else None
            index = next((k.value for k in node.keywords if k.arg == "index"), index)
            yield WrittenMark(
                file,
                node.lineno,
                ast.unparse(node),
                how,
                ast.unparse(node.args[0]).replace("'", '"'),
                tuple(_integers(index)),
            )


def _integers(node: ast.expr | None) -> Iterator[int]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    for part in parts:
        if isinstance(part, ast.Constant) and type(part.value) is int:
            yield part.value
