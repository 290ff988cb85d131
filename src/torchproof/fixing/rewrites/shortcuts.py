"""`if len(rows) == 0: continue`: what is stored at no rows needs no question.

It saves time in eager mode. In a graph Python would need the number of rows; without
the question, a setting of torch keeps such sizes in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from torchproof.checking import Kind, words
from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.compiler_settings import with_setting
from torchproof.fixing.rewrites.operators import (
    brief,
    called,
    layer_calls,
    nodes,
    replaced_in,
)
from torchproof.fixing.rewrites.site import Draft, NoPattern, Refused, Site, parsed
from torchproof.fixing.rewrites.values import Values
from torchproof.records import Setting

_CAPTURED = Setting("dynamo.capture_dynamic_output_shape_ops", True)
_LISTS = words("where nonzero argwhere")
# Functions of a tensor and an index that change nothing where the index is empty.
_STORES = words("index_add index_copy index_fill index_put masked_fill masked_scatter")
# They raise if there is nothing.
_OF_SOME = words(
    "max min argmax argmin amax amin aminmax median mode topk kthvalue quantile item"
)
_NUMBERS = words("int float bool")
_EACH = (cst.BaseComp, cst.StarredElement)


def always(site: Site) -> Draft:
    """What follows the question runs in any case."""
    found = next(filter(None, map(_shortcut, _near(site))), None)
    if found is None:
        raise NoPattern("nothing depends on whether rows are selected")
    branch, asked = found
    rest = names.following(site, branch) if _leaves(branch) else names.body(branch)
    if _leaves(branch) and (not rest or branch not in _loop(site, branch)):
        raise NoPattern("the question does not skip the rest of a round")
    chosen = _selected(site, asked)
    values = names.values_of(site.function, asked)
    of_places = any(each is None or _lists(each) for each in values)
    if of_places and f"{asked}.any(" in brief(branch.test):
        raise NoPattern(f"`{asked}` are places, and place 0 counts as false")
    _Rest(site, chosen).check(rest)
    text = site.replaced({branch: () if _leaves(branch) else rest})
    if f"{_CAPTURED.name.partition('.')[2]} = True" not in text:
        text = with_setting(replace(site, file=parsed(site.file.path, text)), _CAPTURED)
    title = (
        f"drop the question whether `{asked}` is empty, and keep its size in the graph"
    )
    return Draft(title, text, "unsafe")


def _near(site: Site) -> Iterator[cst.BaseStatement]:
    """The statement at the line and the one after it."""
    yield site.statement
    yield from names.following(site, site.statement)[:1]


def _leaves(branch: cst.If) -> bool:
    return names.ends_with(names.body(branch), cst.Continue)


def _loop(site: Site, branch: cst.If) -> Sequence[cst.CSTNode]:
    loop = site.around(branch, cst.For)
    return names.body(loop) if loop is not None else ()


def _shortcut(statement: cst.BaseStatement) -> tuple[cst.If, str] | None:
    """A branch for an empty selection that leaves, or for one with rows."""
    if not isinstance(statement, cst.If) or statement.orelse is not None:
        return None
    leaves, test, empty = _leaves(statement), statement.test, False
    if leaves and len(names.body(statement)) > 1:
        return None
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test, empty = test.expression, True
    elif isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        [compared] = test.comparisons
        empty = isinstance(compared.operator, cst.Equal)
        is_known = empty or isinstance(compared.operator, cst.GreaterThan)
        if not is_known or brief(compared.comparator) != "0":
            return None
        test = test.left
    name = _counted(test)
    return (statement, name) if name and empty == leaves else None


def _counted(node: cst.BaseExpression) -> str | None:
    """The `rows` of `len(rows)`, `rows.numel()`, `rows.shape[0]` and `rows.any()`."""
    if isinstance(node, cst.Subscript) and brief(node).endswith(".shape[0]"):
        node = cst.ensure_type(node.value, cst.Attribute).value
    elif isinstance(node, cst.Call):
        how = called(node)[0]
        if how == "len" and len(node.args) == 1:
            node = node.args[0].value
        elif isinstance(node.func, cst.Attribute) and how in ("numel", "any", "size"):
            node = node.func.value
    return node.value if isinstance(node, cst.Name) else None


def _lists(value: cst.BaseExpression) -> bool:
    """Whether a value has the places that torch.where or nonzero lists."""
    calls = (each for each in nodes(value) if isinstance(each, cst.Call))
    return any(called(each)[0] in _LISTS for each in calls)


def _selected(site: Site, asked: str) -> set[str]:
    """The names that are empty if one is: it, and what is listed with it."""
    chosen = {asked}
    values = Values(site)
    for node in nodes(site.function.body):
        if isinstance(node, cst.Assign) and asked in names.assigned(node):
            listed = _lists(node.value)
            kind = values.kind(node.value)
            if not (listed or kind is Kind.MASK or _compares(node.value)):
                raise Refused(f"`{asked}` may be more than what a tensor selects")
            chosen |= names.assigned(node) if listed else set()
    if asked not in names.assigned(site.function.body):
        raise Refused(f"`{asked}` may be more than what a tensor selects")
    return chosen


def _compares(value: cst.BaseExpression) -> bool:
    """Whether a value with methods is a mask: comparisons, and what joins them."""
    if isinstance(value, cst.UnaryOperation):
        return _compares(value.expression)
    if isinstance(value, cst.BinaryOperation):
        is_joined = isinstance(value.operator, (cst.BitAnd, cst.BitOr))
        return is_joined and _compares(value.left) and _compares(value.right)
    return isinstance(value, cst.Comparison)


class _Rest:
    """What depends on the question: stores at the rows, and values for them."""

    def __init__(self, site: Site, chosen: set[str]) -> None:
        self.site, self.chosen = site, chosen

    def check(self, rest: Sequence[cst.BaseStatement]) -> None:
        depend = set(self.chosen)
        for line in rest:
            parts = line.body if isinstance(line, cst.SimpleStatementLine) else ()
            if len(parts) != 1 or not self._is_harmless(parts[0], rest[-1]):
                raise Refused(f"`{brief(line)}` does more than store at the rows")
            self._assert_pure(parts[0])
            for each in nodes(line):
                if self._needs_a_row(each, depend):
                    raise Refused(f"`{brief(each)}` raises if there are no rows")
            if names.reads(line) & depend:
                depend |= names.assigned(line)

    def _needs_a_row(self, node: cst.CSTNode, depend: set[str]) -> bool:
        """Whether an expression takes one of the rows, or each on its own."""
        if isinstance(node, _EACH):
            return bool(names.reads(node) & depend)
        if isinstance(node, cst.Call):
            name, is_function = called(node)
            return name in _OF_SOME or (is_function and name in _NUMBERS)
        if not isinstance(node, cst.Subscript) or not names.reads(node.value) & depend:
            return False
        first = node.slice[0].slice
        is_one = isinstance(first, cst.Index) and not self._is_row(first.value)
        return is_one and not brief(node.value).endswith(".shape")

    def _is_harmless(self, part: cst.CSTNode, last: cst.BaseStatement) -> bool:
        """Whether a statement changes nothing where there are no rows."""
        if isinstance(part, cst.Expr) and isinstance(part.value, cst.Call):
            how = called(part.value)[0]
            return how.removesuffix("_") in _STORES and self._at_rows(part.value.args)
        if isinstance(part, cst.AugAssign):
            return self._is_store(part.target)
        if not isinstance(part, cst.Assign) or len(part.targets) != 1:
            return False
        target, value = part.targets[0].target, part.value
        if isinstance(target, cst.Name):
            is_call = isinstance(value, cst.Call) and called(value)[0] in _STORES
            own = brief(value).startswith(f"{target.value}.")
            if is_call and own and self._at_rows(value.args):  # type: ignore[attr-defined]
                return True
            return not names.is_needed_after(self.site, last, target.value)
        return self._is_store(target)

    def _is_store(self, target: cst.BaseExpression) -> bool:
        return isinstance(target, cst.Subscript) and any(
            self._is_row(each.slice.value)
            for each in target.slice
            if isinstance(each.slice, cst.Index)
        )

    def _at_rows(self, arguments: Sequence[cst.Arg]) -> bool:
        return any(self._is_row(each.value) for each in arguments)

    def _is_row(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value in self.chosen

    def _assert_pure(self, part: cst.BaseSmallStatement) -> None:
        value = getattr(part, "value", part)
        bare = replaced_in(value, layer_calls(value, self._loop_names()))
        parts: list[cst.CSTNode] = [bare]
        if isinstance(part, cst.Expr) and isinstance(bare, cst.Call):
            parts = [each.value for each in bare.args]
        if why := next(filter(None, map(Values(self.site).effect, parts)), None):
            raise Refused(why)

    def _loop_names(self) -> set[str]:
        loop = self.site.around(self.site.statement, cst.For)
        return names.assigned(loop) if loop is not None else set()
