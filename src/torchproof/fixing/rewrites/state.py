"""Python values that change from call to call: attributes, globals, arguments, lists.

They are read and changed before or after the graph, and the graph gets them as
arguments: numbers become dynamic, tensors are inputs, and a list becomes one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.host_parts import (
    Parts,
    assert_cheap,
    assert_splits,
    parameters_of,
    parts_at,
    split_draft,
)
from torchproof.fixing.rewrites.operators import brief, dotted, nodes, replaced_in
from torchproof.fixing.rewrites.site import (
    Draft,
    Refused,
    Site,
    Statement,
    statements,
)

_NUMBERS = ("min", "max", "abs", "int", "float", "round", "bool", "len", "sum")


def outside_graph(site: Site) -> Draft:
    """Reads and changes an attribute or a global outside the graph."""
    parts = parts_at(site)
    subject = _subject(site, parts)
    writes = [i for i, each in enumerate(parts.inside) if _writes(each, subject)]
    if any(_changes_contents(each, subject) for each in parts.inside):
        split = _without_container(site, parts, subject)
    elif not writes:
        split = parts
    else:
        try:
            split = _changed_first(site, parts, subject, max(writes) + 1)
        except Refused:
            moved = parts.inside[min(writes) :]
            assert_cheap(site, moved)
            after = (*moved, *parts.after)
            split = replace(parts, inside=parts.inside[: min(writes)], after=after)
    split = _as_argument(site, split, subject)
    what = "read" if not writes else "change"
    return split_draft(site, f"{what} `{subject}` outside the graph", split)


def _subject(site: Site, parts: Parts) -> str:
    """The dotted name that changes; it must mean the same on the host."""
    subject = site.subject
    try:
        named = dotted(cst.parse_expression(subject)) if subject else None
    except cst.ParserSyntaxError:
        named = None
    root = subject.partition(".")[0]
    local = {*names.assigned(parts.body), *parameters_of(parts.host)}
    if named is None or (root in local and root == subject):
        raise Refused(f"`{subject}` is not an attribute or a global")
    if root in names.assigned(parts.body):
        raise Refused(f"`{root}` is assigned in the function")
    if not any(_reads_or_writes(each, subject) for each in parts.inside):
        raise Refused(f"`{subject}` is read in a function that the graph calls")
    return subject


def _reads_or_writes(statement: Statement, subject: str) -> bool:
    return bool(_occurrences(statement, subject))


def _occurrences(root: cst.CSTNode, subject: str) -> list[cst.BaseExpression]:
    return [
        node
        for node in nodes(root)
        if isinstance(node, (cst.Attribute, cst.Name)) and dotted(node) == subject
    ]


def _writes(statement: Statement, subject: str) -> bool:
    targets = [
        node.target
        for node in nodes(statement)
        if isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign))
    ]
    return any(_occurrences(target, subject) for target in targets)


_CHANGING = words(
    "append extend insert pop popitem popleft appendleft clear remove update setdefault"
    " add discard sort reverse"
)


def _changes_contents(statement: Statement, subject: str) -> bool:
    """Whether a statement changes what a list or another container holds."""
    for node in nodes(statement):
        called = node.func if isinstance(node, cst.Call) else None
        if (
            isinstance(called, cst.Attribute)
            and called.attr.value in _CHANGING
            and dotted(called.value) == subject
        ):
            return True
        target = getattr(node, "target", None)
        if isinstance(target, cst.Subscript) and dotted(target.value) == subject:
            return True
    return False


def _without_container(site: Site, parts: Parts, subject: str) -> Parts:
    """Moves every statement with a container out: its length is part of a graph."""
    used = [i for i, s in enumerate(parts.inside) if _reads_or_writes(s, subject)]
    first, last = min(used), max(used) + 1
    try:
        moved = parts.inside[first:]
        assert_cheap(site, moved)
        split = replace(
            parts, inside=parts.inside[:first], after=(*moved, *parts.after)
        )
        assert_splits(split)
    except Refused as refused:
        moved = parts.inside[:last]
        try:
            assert_cheap(site, moved)
        except Refused:
            raise refused from None
        before = (*parts.before, *moved)
        split = replace(parts, before=before, inside=parts.inside[last:])
    return split


def _changed_first(site: Site, parts: Parts, subject: str, count: int) -> Parts:
    """Moves the first statements before the graph, and what is computed from them."""
    moved = list(parts.inside[:count])
    assert_cheap(site, moved)
    for statement in parts.inside[count:]:
        if not _is_of_numbers(statement, subject, names.assigned(moved)):
            break
        moved.append(statement)
    return replace(
        parts,
        before=(*parts.before, *moved),
        inside=parts.inside[len(moved) :],
    )


def _is_of_numbers(statement: Statement, subject: str, known: set[str]) -> bool:
    """Whether a statement computes a number from the value that changes."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    [small] = statement.body
    if not isinstance(small, cst.Assign):
        return False
    for node in nodes(small.value):
        if isinstance(node, cst.Call):
            name = dotted(node.func) or ""
            if name not in _NUMBERS and not name.startswith("math."):
                return False
    read = names.reads(small.value)
    return bool(_occurrences(small.value, subject)) or bool(read & known)


def _as_argument(site: Site, parts: Parts, subject: str) -> Parts:
    """Lets the graph get the value as an argument where it reads it."""
    if not any(_reads_or_writes(each, subject) for each in parts.inside):
        return parts
    name = _new_name(parts, subject.rpartition(".")[2].strip("_").lower())
    inside = [
        replaced_in(each, dict.fromkeys(_occurrences(each, subject), cst.Name(name)))
        for each in parts.inside
    ]
    [line] = statements(f"{name} = {subject}\n")
    return replace(parts, before=(*parts.before, line), inside=tuple(inside))


def _new_name(parts: Parts, wanted: str) -> str:
    taken = names.reads(parts.host) | names.assigned(parts.body)
    taken |= {*parameters_of(parts.host)}
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


# -- arguments -------------------------------------------------------------------------


def tensor_argument(site: Site) -> Draft:
    """Makes a number that changes a tensor before the graph."""
    parts = parts_at(site)
    name = site.subject
    if name not in parameters_of(parts.host) or name in _stars(parts.host):
        raise Refused(f"`{name}` is not an argument of `{parts.host.name.value}`")
    lines = statements(f"{name} = torch.as_tensor({name})\n")
    split = replace(parts, before=(*parts.before, *lines))
    return split_draft(site, f"give the graph `{name}` as a tensor", split, ["torch"])


def _stars(function: cst.FunctionDef) -> set[str]:
    return set(parameters_of(function)) - set(names.parameters(function))


def joined_list(site: Site) -> Draft:
    """Joins the tensors of a list before the graph, and marks their number."""
    parts = parts_at(site)
    name = site.subject.partition("[")[0]
    if name not in names.parameters(parts.host):
        raise Refused(f"`{name}` is not an argument of `{parts.host.name.value}`")
    if name in names.assigned(parts.body):
        raise Refused(f"`{name}` is assigned in the function")
    tests, joins = _uses(site, parts.inside, name)
    if len(joins) != 1:
        raise Refused(
            f"the tensors of `{name}` are not joined by one torch.stack or torch.cat:"
            " the graph has other code for each length"
        )
    [join] = joins
    _assert_of_arguments(site, parts, join)
    whole = _new_name(parts, f"{name}_joined")
    optional = f" if {name} is not None else None" if tests else ""
    check = f"if {whole} is not None:\n    " if tests else ""
    text = (
        f"{whole} = {site.code(join)}{optional}\n"
        f"{check}torch._dynamo.maybe_mark_dynamic({whole}, 0)\n"
    )
    changes: dict[cst.CSTNode, cst.BaseExpression] = dict.fromkeys(
        [join, *tests], cst.Name(whole)
    )
    inside = tuple(replaced_in(each, changes) for each in parts.inside)
    split = replace(parts, before=(*parts.before, *statements(text)), inside=inside)
    title = f"join the tensors of `{name}` before the graph"
    return split_draft(site, title, split, ["torch"])


def _uses(
    site: Site, inside: Sequence[Statement], name: str
) -> tuple[list[cst.Name], list[cst.Call]]:
    """Where a list is compared with None, and the calls that join its tensors."""
    tests: list[cst.Name] = []
    joins: dict[cst.Call, None] = {}
    for use in (use for each in inside for use in names.uses_of(each, name)):
        above = site.parent(use)
        if isinstance(above, cst.Comparison) and _is_none(above):
            tests.append(use)
            continue
        calls = [n for n in site.ancestors(use) if isinstance(n, cst.Call)]
        join = next((n for n in calls if _joins(n)), None)
        if join is None:
            raise Refused(
                f"`{brief(above or use)}` needs the tensors of `{name}` one by one: the"
                " graph has other code for each length"
            )
        joins[join] = None
    return tests, list(joins)


def _is_none(node: cst.Comparison) -> bool:
    return all(
        isinstance(each.operator, (cst.Is, cst.IsNot))
        and dotted(each.comparator) == "None"
        for each in node.comparisons
    )


def _joins(call: cst.Call) -> bool:
    joins = ("stack", "cat", "concat", "vstack", "hstack", "pad_sequence")
    return (dotted(call.func) or "").rpartition(".")[2] in joins


def _assert_of_arguments(site: Site, parts: Parts, join: cst.Call) -> None:
    """Refuses a call that reads what the graph computes."""
    assert_cheap(site, [cst.SimpleStatementLine([cst.Expr(join)])])
    own = {*names.assigned(parts.inside)}
    inner = {
        name
        for node in nodes(join)
        if isinstance(node, cst.CompFor)
        for name in names.assigned(node)
    }
    if needed := sorted((names.reads(join) & own) - inner):
        raise Refused(f"`{brief(join)}` needs `{needed[0]}`, which the graph computes")
