"""Walks one function in execution order and tracks the kind of each value.

The walk skips branches that tracing does not take: those excluded by `is_compiling()`
or by a constant of the module. It does not report branches that end in an exception.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from torchproof.checking.static import kinds
from torchproof.checking.static.evaluate import Values
from torchproof.checking.static.kinds import Kind, join
from torchproof.checking.static.program import Program
from torchproof.checking.static.source import Function, children, walk

Look = Callable[[ast.AST, "Flow"], None]


class Flow:
    """The walk of one function. Calls `look` for each node, operands first."""

    def __init__(
        self,
        function: Function,
        program: Program,
        *,
        arguments: Mapping[str, Kind],
        look: Look,
    ) -> None:
        self.function, self.program, self.source = function, program, function.source
        self.values = Values(
            function, program, arguments, returned=lambda f: returned(f, program)
        )
        self.conditions: list[ast.expr] = []  # the tests of the enclosing branches
        self.reported: set[str] = set()  # what a rule reports once per function
        self._look = look
        self._failing = 0

    def run(self) -> None:
        self.block(self.function.node.body)

    # -- queries for patterns ----------------------------------------------------------

    def kind(self, node: ast.AST) -> Kind:
        return self.values.kinds.get(node, Kind.UNKNOWN)

    def dotted(self, node: ast.AST | None) -> str | None:
        return self.source.dotted(node)

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.source.text_of(node)

    def called(self, node: ast.Call) -> str:
        """`sum` for `x.sum()` of a tensor and for `torch.sum(x)`; else empty."""
        function = node.func
        if isinstance(function, ast.Attribute) and self.kind(function.value).is_tensor:
            return function.attr
        module, _, name = (self.dotted(function) or "").rpartition(".")
        return name if module == "torch" else ""

    def quote(self, node: ast.AST) -> str:
        return self.source.quote(node)

    # -- statements --------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Whether the block ends early, with return, raise, break or continue."""
        return any(self.statement(statement) for statement in body)

    def statement(self, node: ast.stmt) -> bool:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        ended = bool(method(node)) if method else self._plain(node)
        self.show(node)
        return ended

    def show(self, node: ast.AST) -> None:
        if not self._failing:
            self._look(node, self)

    def visit(self, node: ast.expr | None) -> Kind:
        """Shows an expression to `look`, operands first, and returns its kind."""
        if node is None:
            return Kind.UNKNOWN
        inner = getattr(self, f"_{type(node).__name__.lower()}", None)
        if inner is not None:
            inner(node)
        else:
            for child in children(node):
                if isinstance(child, ast.expr):
                    self.visit(child)
                elif isinstance(child, ast.keyword):
                    self.visit(child.value)
        kind = self.values.evaluate(node)
        self.show(node)
        return kind

    def _plain(self, node: ast.stmt) -> bool:
        for child in children(node):
            if isinstance(child, ast.expr):
                self.visit(child)
        return isinstance(node, ast.Return | ast.Break | ast.Continue)

    def _raise(self, node: ast.Raise) -> bool:
        return True  # the message is only built when the program fails

    def _assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, node.value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, node.value)

    def _augassign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self.visit(node.target)
        self.values.update(node)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        for inner in walk(target):  # x[mask] = y
            if isinstance(inner, ast.Subscript):
                self.visit(inner.value)
                self.visit(inner.slice)
                self.show(inner)
        self.values.bind(target, value)

    def _if(self, node: ast.If) -> bool:
        truth = self.values.truth(node.test)
        if truth is not None:
            return self.block(node.body if truth else node.orelse)
        self.visit(node.test)
        before = self.values.copy()
        with self._under(node.test, node.body):
            self.values.narrow(node.test)
            ended = self.block(node.body)
        after = self.values.environment
        self.values.environment = before
        self.values.narrow(node.test, holds=False)
        with self._under(None, node.orelse):
            other = self.block(node.orelse)
        if other and not ended:
            self.values.environment = after
        elif not ended:
            self.values.merge(after)
        return ended and other

    @contextlib.contextmanager
    def _under(self, test: ast.expr | None, body: Sequence[ast.stmt]) -> Iterator[None]:
        """Enters a branch. One that ends in an exception is not shown to `look`."""
        failing = bool(body) and isinstance(body[-1], ast.Raise)
        self._failing += failing
        if test is not None:
            self.conditions.append(test)
        yield
        if test is not None:
            self.conditions.pop()
        self._failing -= failing

    def _while(self, node: ast.While) -> None:
        self.visit(node.test)
        self._loop(node)

    def _for(self, node: ast.For) -> None:
        self.visit(node.iter)
        self.values.bind_element(node.target, node.iter)
        self._loop(node)

    def _loop(self, node: ast.For | ast.While) -> None:
        before = self.values.copy()
        self.block(node.body)
        self.values.merge(before)
        self.block(node.orelse)

    def _with(self, node: ast.With) -> bool:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self.values.forget(item.optional_vars)
        return self.block(node.body)

    def _try(self, node: ast.Try) -> bool:
        ended = self.block(node.body)
        for handler in node.handlers:
            self._failing += 1  # runs only if the body fails
            self.block(handler.body)
            self._failing -= 1
        self.block(node.orelse)
        return self.block(node.finalbody) or ended

    _trystar = _try

    def _match(self, node: ast.Match) -> bool:
        self.visit(node.subject)
        before, after, falls = self.values.copy(), [], True
        for case in node.cases:
            self.values.environment = dict(before)
            for inner in walk(case.pattern):
                bound = getattr(inner, "name", None) or getattr(inner, "rest", None)
                if bound:
                    self.values.environment[bound] = Kind.UNKNOWN
            self.visit(case.guard)
            if not self.block(case.body):
                after.append(self.values.environment)
            falls = not _is_default(case)
        if falls:
            after.append(before)
        self.values.environment = after[0] if after else before
        for way in after[1:]:
            self.values.merge(way)
        return not after

    def _functiondef(self, node: ast.FunctionDef) -> None:
        """Walks the body of an inner function here: some code will call it."""
        before = self.values.copy()
        for parameter in (*node.args.posonlyargs, *node.args.args):
            kind = kinds.of_annotation(parameter.annotation)
            self.values.environment[parameter.arg] = kind
        self.block(node.body)
        self.values.environment = before

    def _classdef(self, node: ast.ClassDef) -> None:
        return None

    # -- expressions that bind or choose -----------------------------------------------

    def _lambda(self, node: ast.Lambda) -> None:
        before = self.values.copy()
        for parameter in node.args.args:
            self.values.environment[parameter.arg] = Kind.UNKNOWN
        self.visit(node.body)
        self.values.environment = before

    def _ifexp(self, node: ast.IfExp) -> None:
        truth = self.values.truth(node.test)
        if truth is None:
            self.visit(node.test)
        before = self.values.copy()
        if truth is not False:
            self.values.narrow(node.test)
            self.visit(node.body)
        self.values.environment = dict(before)
        if truth is not True:
            self.values.narrow(node.test, holds=False)
            self.visit(node.orelse)
        self.values.environment = {**before, **self.values.walruses(node)}

    def _boolop(self, node: ast.BoolOp) -> None:
        """Skips the operands after one that decides the result."""
        for operand in node.values:
            truth = self.values.truth(operand)
            if truth is None:
                self.visit(operand)
            elif truth is isinstance(node.op, ast.Or):
                break

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp
    ) -> None:
        before = self.values.copy()
        self._generators(node.generators)
        self.visit(node.elt)
        self.values.environment = {**before, **self.values.walruses(node)}

    _listcomp = _generatorexp = _setcomp = _comprehension

    def _dictcomp(self, node: ast.DictComp) -> None:
        before = self.values.copy()
        self._generators(node.generators)
        self.visit(node.key)
        self.visit(node.value)
        self.values.environment = before

    def _generators(self, generators: Sequence[ast.comprehension]) -> None:
        for each in generators:
            self.visit(each.iter)
            self.values.bind_element(each.target, each.iter)
            for condition in each.ifs:
                self.visit(condition)

    def _namedexpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.values.bind(node.target, node.value)


def _is_default(case: ast.match_case) -> bool:
    matches_all = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
    return matches_all and case.guard is None


_DEEPEST = 4  # nested calls whose return values are evaluated


def returned(function: Function, program: Program) -> Kind:
    """The kind that a function without an annotation returns, by its statements."""
    cache = program.returned
    if function in cache or program.depth >= _DEEPEST:
        return cache.get(function, Kind.UNKNOWN)
    cache[function] = Kind.UNKNOWN  # ends the recursion if it calls itself
    returns, is_generator = _ends(function.node)
    if not returns or is_generator:
        return Kind.UNKNOWN
    return_kinds: list[Kind] = []

    def look(node: ast.AST, at: Flow) -> None:
        if isinstance(node, ast.Return) and node in returns:
            return_kinds.append(at.kind(node.value) if node.value else Kind.NONE)

    program.depth += 1
    try:
        Flow(function, program, arguments={}, look=look).run()
    finally:
        program.depth -= 1
    kind = functools.reduce(join, return_kinds, Kind.NONE)
    cache[function] = Kind.UNKNOWN if kind is Kind.NONE else kind
    return cache[function]


def _ends(function: ast.AST) -> tuple[set[ast.AST], bool]:
    """The return statements of a function and whether it yields; skips inner ones."""
    returns: set[ast.AST] = set()
    yields = False
    waiting = list(children(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yields |= isinstance(node, ast.Yield | ast.YieldFrom | ast.Await)
        if isinstance(node, ast.Return):
            returns.add(node)
        waiting.extend(children(node))
    return returns, yields


def joined(arguments: Mapping[str, Kind], more: Mapping[str, Kind]) -> dict[str, Kind]:
    """The kinds of parameters over several calls."""
    return {
        name: join(arguments.get(name, kind), kind)
        for name, kind in {**arguments, **more}.items()
    }
