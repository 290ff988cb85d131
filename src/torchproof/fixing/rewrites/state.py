"""What each call changes stays in Python: a counter, a history, a global (on_host).

The graph gets what it needs of it as an argument, so that no guard checks it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites.names import (
    assigned,
    changed_in_place,
    fresh,
    only,
    parameters,
    reads,
    start_of,
)
from torchproof.fixing.rewrites.operators import brief, dotted, nodes, replaced_in
from torchproof.fixing.rewrites.outside import (
    FORBIDDEN,
    assert_plain,
    body_of,
    drafted,
)
from torchproof.fixing.rewrites.pieces import Place, Sorter
from torchproof.fixing.rewrites.site import Draft, NoPattern, Refused, Site, Statement

_ADDING = words(
    "append extend insert add update appendleft setdefault pop popleft clear remove"
)
_NUMERIC = words("abs divmod float int len max min pow round sum")
_ASSIGNING = (cst.AugAssign, cst.AssignTarget)
_DRAWS = re.compile(r"rand|normal_?\(|bernoulli|multinomial|dropout")


def outside(site: Site) -> Draft:
    """The statements around what a call changes leave the graph, in their order."""
    if not site.is_entry:
        raise NoPattern("the line is not in the function that is compiled")
    assert_plain(
        site, site.function, tuple(k for k in FORBIDDEN if k is not cst.Global)
    )
    state = _State(site)
    sorter = Sorter(site, is_state=True)
    before, graph, after = _parted(state, sorter)
    code = f"do `{brief(site.statement)}` and what it is for outside"
    title = f"{code}, around the compiled call (on_host)"
    pieces = list(map(sorter.on_host, before))
    pieces += [replace(sorter.in_graph(each), place=Place.GRAPH) for each in graph]
    return drafted(sorter, [*pieces, *map(sorter.on_host, after)], title)


class _State:
    """What a function changes at a line, that lasts longer than its call."""

    def __init__(self, site: Site) -> None:
        self.site, function = site, site.function
        self.declared = {
            name.name.value
            for node in nodes(function.body)
            if isinstance(node, cst.Global)
            for name in node.names
        }
        own = (assigned(function) | set(parameters(function))) - self.declared
        kept = {
            name
            for name in _changed(function.body)
            if name.startswith("self.") or ("." not in name and name not in own)
        }
        owner = site.around(function, cst.ClassDef)
        self._class = owner.body.body if owner else ()
        others = {
            f"{prefix}{node.name.value}": node
            for prefix, block in (("self.", self._class), ("", site.module.body))
            for node in block
            if isinstance(node, cst.FunctionDef) and node is not function
        }
        self._methods = others
        lines: list[cst.CSTNode] = [site.statement]
        lines += [each for name, each in others.items() if _mentions(lines[0], {name})]
        self._names = {n for n in kept if any(_mentions(each, {n}) for each in lines)}
        if not self._names:
            raise NoPattern("the line changes nothing that a later call reads")
        self._touched = self._names | self._unknown(function)
        while (
            readers := {
                name for name, each in others.items() if _mentions(each, self._touched)
            }
            - self._touched
        ):
            self._touched |= readers
        targets = [n.target for n in nodes(function.body) if isinstance(n, _ASSIGNING)]
        self._lists = self._names - {dotted(each) or "" for each in targets}
        self._numbers = frozenset[str]()

    def _unknown(self, function: cst.FunctionDef) -> set[str]:
        """What is called, and may read it: methods of a base class."""
        made = {each for part in self._class for each in _changed(part)}
        called = {
            dotted(node.func) or ""
            for node in nodes(function.body)
            if isinstance(node, cst.Call)
        }
        own = {name for name in called if name.startswith("self.")}
        return {"super"} | {n for n in own - made if n.count(".") == 1}

    def is_in(self, node: cst.CSTNode) -> bool:
        given = (n.value for n in nodes(node) if isinstance(n, cst.Arg))
        return _mentions(node, self._touched) or "self" in map(dotted, given)

    def is_changed_in(self, node: cst.CSTNode) -> bool:
        return bool(self._names & set(_changed(node)))

    def is_computed_in(self, node: Statement) -> bool:
        """Whether a statement only computes with numbers that were made of it."""
        line = only(node)
        return isinstance(line, cst.Assign) and line.value in self.numbers(line)

    def note(self, names: set[str]) -> None:
        self._numbers = self._numbers | names

    def numbers(self, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """The largest expressions that compute a number of it, and of nothing else."""
        if isinstance(node, cst.BaseExpression) and self._is_number(node):
            is_used = _mentions(node, self._touched | self._numbers)
            if is_used and not isinstance(node, cst.Name):
                yield node
            return
        for child in node.children:
            yield from self.numbers(child)

    def _is_number(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.BinaryOperation(left=left, right=right):
                return self._is_number(left) and self._is_number(right)
            case cst.UnaryOperation(expression=value):
                return self._is_number(value)
            case cst.Call(func=func, args=args):
                name = dotted(func) or ""
                known = _is_numeric(name) or self._computes(name)
                given = [each.value for each in args]
                lists = [each for each in given if dotted(each) in self._lists]
                rest = [each for each in given if each not in lists]
                return known and all(map(self._is_number, rest))
            case cst.Name() | cst.Attribute():
                name = dotted(node) or ""
                if name in self._touched | self._numbers:
                    return name in (self._names - self._lists) | self._numbers
                return name.startswith("self.") and name.count(".") == 1
        return isinstance(node, cst.BaseNumber)

    def untraced(self, statement: Statement) -> Statement:
        """Functions that read it are not compiled on their own, for each value."""
        called = (node.func for node in nodes(statement) if isinstance(node, cst.Call))
        own = {f: n for f in called if (n := dotted(f)) in self._methods}
        new: dict[cst.CSTNode, cst.BaseExpression] = {
            func: cst.parse_expression(f"torch.compiler.disable({name})")
            for func, name in own.items()
        }
        return replaced_in(statement, new)

    def _computes(self, method: str) -> bool:
        """Whether a method only computes with numbers."""
        found = self._methods.get(method)
        if found is None:
            return False
        calls = (node for node in nodes(found.body) if isinstance(node, cst.Call))
        return all(_is_numeric(dotted(call.func) or "") for call in calls)


def _is_numeric(function: str) -> bool:
    return function in _NUMERIC or function.startswith("math.")


def _changed(root: cst.CSTNode) -> Iterator[str]:
    """What code assigns, adds something to, or sets an item of."""
    for node in nodes(root):
        if isinstance(node, _ASSIGNING):
            yield start_of(node.target) or ""
            continue
        called = node.func if isinstance(node, cst.Call) else None
        if isinstance(called, cst.Attribute) and called.attr.value in _ADDING:
            yield dotted(called.value) or ""


def _mentions(root: cst.CSTNode, names: set[str]) -> bool:
    return bool((_used(root) | _written(root)) & names)


def _parted(
    state: _State, sorter: Sorter
) -> tuple[list[Statement], list[Statement], list[Statement]]:
    """The statements before the graph, in it, and after it."""
    before: list[Statement] = []
    graph: list[Statement] = []
    after: list[Statement] = []
    *first, last = body_of(state.site.function)
    for each in first:
        if any(isinstance(node, cst.Return) for node in nodes(each)):
            raise NoPattern("the function returns in several places")
    for each in _with_names(state, [*first, last]):
        is_return = isinstance(only(each), cst.Return)
        is_global = isinstance(only(each), cst.Global)
        stays = is_global or state.is_in(each) or state.is_computed_in(each)
        if not stays and not (is_return and after and sorter.is_light(each)):
            _assert_free(each, after)
            if assigned(each) & state.declared:
                raise Refused(f"`{brief(each)}` changes a global")
            graph.append(
                _named(each, state.site, after) if is_return and after else each
            )
            continue
        if not sorter.is_light(each):
            raise Refused(f"`{brief(each)}` does more than Python does")
        if _DRAWS.search(state.site.code(each)):
            raise Refused(f"`{brief(each)}` draws random numbers")
        made = {name for one in graph for name in _written(one)}
        if after or is_return or _used(each) & made:
            after.append(state.untraced(each))
            continue
        _assert_free(each, graph)
        before.append(state.untraced(each))
        state.note(assigned(each) - set(parameters(state.site.function)))
    return before, graph, after


def _assert_free(moved: Statement, others: Sequence[Statement]) -> None:
    """Refuses if a statement cannot go before others that are above it."""
    for each in others:
        mine, theirs = _written(moved), _written(each)
        if theirs & _used(moved) or mine & (theirs | _used(each)):
            raise Refused(f"`{brief(moved)}` needs `{brief(each)}`")


def _written(node: cst.CSTNode) -> set[str]:
    return assigned(node) | changed_in_place([node]) | set(_changed(node))


def _used(node: cst.CSTNode) -> set[str]:
    if isinstance(node, cst.SimpleStatementLine) and isinstance(only(node), cst.Global):
        return set()
    dotted_names = {
        dotted(n) or "" for n in nodes(node) if isinstance(n, cst.Attribute)
    }
    return reads(node) | dotted_names


def _with_names(state: _State, block: Sequence[Statement]) -> Iterator[Statement]:
    """The statements, with names for the numbers that the graph needs."""
    count = itertools.count(1)
    for each in block:
        line, found = only(each), list[cst.BaseExpression]()
        if isinstance(line, (cst.Assign, cst.Return)) and not state.is_changed_in(each):
            found = list(state.numbers(each))
        if line is None or getattr(line, "value", None) in found:
            found = []
        changes: dict[cst.CSTNode, cst.BaseExpression] = {}
        for number in found:
            name = fresh(state.site.module, f"number_{next(count)}")
            yield cst.parse_statement(f"{name} = {state.site.code(number)}\n")
            changes[number] = cst.Name(name)
        yield replaced_in(each, changes) if changes else each


def _named(each: Statement, site: Site, after: list[Statement]) -> Statement:
    """The statement that computes what a function returns, which another one does."""
    line, name = only(each), fresh(site.module, "result")
    assert isinstance(line, cst.Return) and line.value is not None
    value = site.code(line.value)
    after.append(cst.parse_statement(f"return {name}\n"))
    return cst.parse_statement(f"{name} = {value}\n")
