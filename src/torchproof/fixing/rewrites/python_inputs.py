"""Calls of tokenizers and other Python objects, which can run before the graph.

They take text and other Python values, and Dynamo either cannot trace them or compiles
again for each value. If what they take does not come from the graph, they run first,
and the graph gets what they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.host_parts import (
    Parts,
    assert_cheap,
    object_name,
    parameters_of,
    parts_at,
    split_draft,
)
from torchproof.fixing.rewrites.operators import brief, dotted, nodes, replaced_in
from torchproof.fixing.rewrites.site import Draft, Refused, Site, Statement

_PLAIN = words(
    "len sorted list tuple set dict zip enumerate range reversed str int float min max"
    " sum map filter any all ord chr bool"
)
# Functions that make a tensor of Python values.
_TENSORS = words(
    "torch.tensor torch.as_tensor torch.from_numpy torch.LongTensor torch.FloatTensor"
    " np.array np.asarray numpy.array numpy.asarray"
)
_CHANGING = words("append extend insert pop setdefault update add")
_METHODS = _CHANGING | words(
    "split rsplit splitlines strip lstrip rstrip lower upper title join replace encode"
    " decode startswith endswith removeprefix removesuffix format partition index count"
    " get keys values items copy"
)


def first(site: Site) -> Draft:
    """Runs what only Python values decide before the graph."""
    parts = parts_at(site)
    root = site.subject.partition("[")[0].partition(".")[0]
    if site.subject:
        moved = _readers(site, parts, root)
        what = f"compute before the graph what depends on `{root}`"
    else:
        moved = _at_site(site, parts)
        what = "run the call before the graph, which gets its result"
    moved = _with_needed(site, parts, moved)
    own = {*parameters_of(parts.host), *names.assigned(parts.body)}
    _assert_order(parts.inside, moved, own - {object_name(site, parts.host)})
    for index in set(range(max(moved))) - moved:
        _assert_changes_nothing(site, parts, parts.inside[index])
    leaving = [parts.inside[i] for i in sorted(moved)]
    if site.inner is not None:
        leaving = [_not_compiled(each) for each in leaving]
    split = replace(
        parts,
        before=(*parts.before, *leaving),
        inside=tuple(s for i, s in enumerate(parts.inside) if i not in moved),
    )
    draft = split_draft(site, what, split, ["torch"] if site.inner else ())
    ranges = [site.range_of(parts.inside[i]) for i in moved]
    lines = min(r.start.line for r in ranges), max(r.end.line for r in ranges)
    return replace(draft, moved=lines)


def _not_compiled(statement: Statement) -> Statement:
    """The statement, whose calls of Python code do not become graphs of their own."""
    changes: dict[cst.CSTNode, cst.BaseExpression] = {}
    for node in nodes(statement):
        if isinstance(node, cst.Call) and _may_be_compiled(node):
            disable = cst.parse_expression("torch.compiler.disable")
            changes[node.func] = cst.Call(disable, [cst.Arg(node.func)])
    return replaced_in(statement, changes)


def _may_be_compiled(call: cst.Call) -> bool:
    name = dotted(call.func)
    return name is not None and not name.startswith("torch.") and not _is_plain(call)


def _at_site(site: Site, parts: Parts) -> set[int]:
    """The statement with the call that Dynamo cannot trace."""
    around = {site.statement, *site.ancestors(site.statement)}
    for index, statement in enumerate(parts.inside):
        if statement in around:
            if isinstance(statement, cst.SimpleStatementLine):
                assert_cheap(site, [statement])
                return {index}
            raise Refused(f"`{brief(statement)}` decides whether the call runs")
    raise Refused("the statement is not in the compiled function")


def _readers(site: Site, parts: Parts, root: str) -> set[int]:
    """The statements that read an argument, or Python values made from it."""
    host = parts.host
    others = {*parameters_of(host)} - {root, object_name(site, host)}
    if root not in parameters_of(host) or root in names.assigned(parts.body):
        raise Refused(f"`{root}` is not an argument of `{host.name.value}`")
    python, results, moved = {root}, set[str](), set[int]()
    for index, statement in enumerate(parts.inside):
        read = names.reads(statement)
        prepares = bool(read & results) and _is_plain(statement, _TENSORS)
        if not (read & python or prepares) or _is_return(statement):
            continue
        if taken := sorted(_reads_values(statement) & others):
            if not read & python:
                continue
            raise Refused(
                f"`{brief(statement)}` also takes `{taken[0]}`, which may be a tensor:"
                " its work would leave the graph"
            )
        moved.add(index)
        made = names.assigned(statement) | _filled(statement)
        if _is_plain(statement) and not prepares:
            python |= made
        else:
            results |= made
    if not moved:
        raise Refused(f"`{root}` is read in a function that the graph calls")
    return moved


def _reads_values(statement: Statement) -> set[str]:
    """The names that a statement reads, besides the device or dtype of a tensor."""
    facts = {
        id(node.value)
        for node in nodes(statement)
        if isinstance(node, cst.Attribute) and node.attr.value in ("device", "dtype")
    }
    read = names.reads(statement)
    return {
        name
        for name in read
        if any(id(use) not in facts for use in names.uses_of(statement, name))
    }


def _is_return(statement: Statement) -> bool:
    """Whether a statement returns; refused if it only may."""
    returns = any(isinstance(node, cst.Return) for node in nodes(statement))
    if returns and not isinstance(statement, cst.SimpleStatementLine):
        raise Refused(f"`{brief(statement)}` may return")
    return returns


def _is_plain(code: cst.CSTNode, more: frozenset[str] = frozenset()) -> bool:
    """Whether code makes Python values: no call that may return a tensor.

    Methods count by their names, but not those of an object's attributes.
    """
    for node in nodes(code):
        if not isinstance(node, cst.Call):
            continue
        name = dotted(node.func) or ""
        if name not in _PLAIN | more and _method(node.func) not in _METHODS:
            return False
    return True


def _method(called: cst.BaseExpression) -> str:
    if not isinstance(called, cst.Attribute):
        return ""
    return "" if isinstance(called.value, cst.Attribute) else called.attr.value


def _filled(statement: Statement) -> set[str]:
    """The variables of the lists and other containers that a statement changes."""
    methods = [
        node.func
        for node in nodes(statement)
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
    ]
    return {
        method.value.value
        for method in methods
        if method.attr.value in _CHANGING and isinstance(method.value, cst.Name)
    }


def _with_needed(site: Site, parts: Parts, moved: Iterable[int]) -> set[int]:
    """Adds the statements whose values the moved ones read, if Python makes them."""
    found, waiting = set(moved), list(moved)
    while waiting:
        index = waiting.pop()
        for name in sorted(names.reads(parts.inside[index])):
            earlier = [
                i for i in range(index) if name in names.assigned(parts.inside[i])
            ]
            for i in (i for i in earlier if i not in found):
                if not _is_made_by_python(site, parts, parts.inside[i]):
                    raise Refused(
                        f"`{brief(parts.inside[index])}` needs `{name}`, which the"
                        " graph computes"
                    )
                found.add(i)
                waiting.append(i)
    return found


def _is_made_by_python(site: Site, parts: Parts, statement: Statement) -> bool:
    """Whether a statement has no value of an argument, and only plain calls."""
    arguments = {*parameters_of(parts.host)} - {object_name(site, parts.host)}
    return _is_plain(statement) and not names.reads(statement) & arguments


def _assert_order(
    inside: Sequence[Statement], moved: set[int], variables: set[str]
) -> None:
    """Refuses if a statement that stays and a later, moved one may affect each other.

    One of them may change an object that both have as a variable.
    """
    for index in sorted(set(range(max(moved))) - moved):
        stays = brief(inside[index])
        later = [inside[i] for i in sorted(moved) if i > index]
        if not _only_assigns_names(inside[index]):
            raise Refused(f"`{stays}` may change what `{brief(later[-1])}` reads")
        used = names.assigned(inside[index]) | names.reads(inside[index])
        for statement in later:
            touched = names.assigned(statement) | _reads_values(statement) & variables
            if early := sorted(used & touched):
                raise Refused(
                    f"`{stays}` uses `{early[0]}` before `{brief(statement)}`, which"
                    " may change it"
                )


def _assert_changes_nothing(site: Site, parts: Parts, statement: Statement) -> None:
    """Refuses a call of a method of the class that changes objects.

    What modules and other objects do when they are called only a proof can show.
    """
    owner = object_name(site, parts.host)
    methods = {
        f"{owner}.{each.name.value}": each
        for each in site.block(parts.host)
        if owner and isinstance(each, cst.FunctionDef)
    }
    for node in nodes(statement):
        method = None
        if isinstance(node, cst.Call):
            method = methods.get(dotted(node.func) or "")
        if method is not None and any(map(_changes_objects, nodes(method))):
            raise Refused(f"`{brief(node)}` may change what a moved statement reads")


def _changes_objects(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Global):
        return True
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        called = node.value.func
        return isinstance(called, cst.Attribute) and called.attr.value in _CHANGING
    target = getattr(node, "target", None)
    return isinstance(target, cst.Attribute | cst.Subscript)


def _only_assigns_names(statement: Statement) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    return all(
        isinstance(each, cst.Assign)
        and all(_is_names(target.target) for target in each.targets)
        for each in statement.body
    )


def _is_names(target: cst.BaseExpression) -> bool:
    if isinstance(target, cst.Tuple):
        return all(_is_names(each.value) for each in target.elements)
    return isinstance(target, cst.Name)
