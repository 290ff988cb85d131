"""Statements that compute Python data from Python objects: torchproof.host_value.

Dynamo may not be able to trace how an object is copied or changed, but what is read
from it in the end are numbers and texts. Which names are data is found by running the
target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from torchproof.fixing.rewrites.effects import (
    ENDS,
    arguments_of,
    new_function,
    top_level,
)
from torchproof.fixing.rewrites.names import (
    always_assigned,
    assigned,
    following,
    fresh,
    in_order,
    is_needed_after,
    reads,
    start_of,
)
from torchproof.fixing.rewrites.operators import dotted, nodes
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    Statement,
)
from torchproof.fixing.rewrites.values import Values

_PROBES = "__import__('torchproof.fixing.call_probe', fromlist=['_'])"
_COPIES_TENSOR = "GB4198"  # torch's name for a graph break at copy.deepcopy(tensor)
_OF_LEAVES = ("grad", "requires_grad", "requires_grad_", "is_leaf", "Parameter")
_LONGEST = 4  # statements
_ENDS = (
    *ENDS,
    cst.Import,
    cst.ImportFrom,
    cst.Match,
    cst.NamedExpr,
    cst.Raise,
    cst.Nonlocal,
    cst.Del,
    cst.FunctionDef,
    cst.ClassDef,
)
Candidate = tuple[list[Statement], list[str]]  # the statements and their results


def data(site: Site) -> Draft:
    """Statements from the one at the line on become a function that returns data."""
    moved, results = _moved(site)
    arguments = arguments_of(site, Values(site), moved)
    if not arguments:
        raise NoPattern("the statements need nothing of the function they are in")
    name = fresh(site.module, f"_{results[0].strip('_').lower()}_on_host")
    function = new_function(f"def {name}", moved, arguments, results)
    texts = ", ".join(each.text for each in arguments)
    changes: Changes = dict.fromkeys(moved[1:], ())

    def calling(call: str, imports: Sequence[str] = ()) -> str:
        line = cst.parse_statement(f"{', '.join(results)} = {call}\n")
        return site.replaced(
            {**changes, moved[0]: [line]}, imports, before={top_level(site): [function]}
        )

    observed = site.probe(calling(f"{_PROBES}.probed_data({name})({texts})"))
    if not observed:
        raise NoPattern("the statements do not run in eager mode as a function")
    if problem := next((each.problem for each in observed if each.problem), None):
        raise Refused(f"the statements cannot run outside the graph: {problem}")
    text = calling(f"host_value({name}, {texts})", ["torchproof.host_value"])
    return Draft("compute the data outside the graph, with host_value", text)


def clone(site: Site) -> Draft:
    """`copy.deepcopy(x)` of a tensor becomes `x.detach().clone()`.

    The copy of a tensor that requires a gradient is a leaf that requires one too, so
    nothing near may ask for it.
    """
    values = Values(site)
    symptom = site.finding.symptom
    of_tensor = symptom is not None and symptom.gb_id == _COPIES_TENSOR
    calls = [
        node
        for node in nodes(site.statement)
        if isinstance(node, cst.Call) and values.dotted(node.func) == "copy.deepcopy"
    ]
    if len(calls) != 1 or len(calls[0].args) != 1:
        raise NoPattern("the statement is not one copy.deepcopy of one object")
    copied = calls[0].args[0].value
    # What is not a variable may be a parameter, or an object that has a tensor.
    if not isinstance(copied, cst.Name) or not (of_tensor or values.is_tensor(copied)):
        raise NoPattern(f"`{site.code(copied)}` may be more than a tensor")
    asks = [
        node.value
        for node in nodes(site.function)
        if isinstance(node, cst.Name) and node.value in _OF_LEAVES
    ]
    if asks:
        raise Refused(f"`{asks[0]}` asks for what a copy has, and a clone has not")
    new = cst.parse_expression(f"{copied.value}.detach().clone()")
    title = f"copy `{copied.value}` with .detach().clone()"
    return Draft(title, site.replaced({calls[0]: new}))


def _moved(site: Site) -> Candidate:
    """The fewest statements whose results are data in every call."""
    candidates = list(_candidates(site))
    if not candidates:
        raise NoPattern("the statement does more than assign names that are used later")
    marked: Changes = {}
    for number, (moved, _) in enumerate(candidates):
        mark = cst.parse_statement(f"{_PROBES}.note(locals(), {number})\n")
        marked[moved[-1]] = [moved[-1], mark]
    observed = site.probe(site.replaced(marked))
    for number, (moved, results) in enumerate(candidates):
        seen = [each.data for each in observed if each.number == number]
        if seen and all(set(results) <= set(each) for each in seen):
            return moved, results
    name = candidates[0][1][0]
    raise Refused(f"`{name}` is more than numbers and texts, and so is what follows")


def _candidates(site: Site) -> Iterator[Candidate]:
    """The statement at the line with some that follow it, the fewest first."""
    block = [site.statement, *following(site, site.statement)]
    for count, last in enumerate(block[:_LONGEST], 1):
        if any(isinstance(node, _ENDS) for node in nodes(last)):
            return
        moved = block[:count]
        if not _stands_alone(moved):
            return
        names = in_order(moved, assigned(moved))
        needed = [name for name in names if is_needed_after(site, last, name)]
        if needed and set(needed) <= always_assigned(moved):
            yield moved, needed


def _stands_alone(moved: Sequence[Statement]) -> bool:
    """Whether statements read no name before they assign it, and change no other."""
    every = assigned(moved)
    known: set[str] = set()
    for statement in moved:
        own = assigned(statement)
        is_simple = isinstance(statement, cst.SimpleStatementLine)
        if reads(statement) & every - known - (set() if is_simple else own):
            return False
        known |= own
        changed = [root for node in nodes(statement) for root in _changed(node)]
        if not known.issuperset(changed):
            return False
    return True


def _changed(node: cst.CSTNode) -> list[str]:
    """The variable of the object that a node changes; empty text if it has none.

    A call whose result is not used is there for what it changes.
    """
    target = getattr(node, "target", None)
    if isinstance(target, (cst.Attribute, cst.Subscript)):
        return [_root(target)]
    call = node.value if isinstance(node, cst.Expr) else None
    if not isinstance(call, cst.Call):
        return []
    if dotted(call.func) == "setattr" and call.args:
        return [_root(call.args[0].value)]
    return [_root(call.func) if isinstance(call.func, cst.Attribute) else ""]


def _root(node: cst.CSTNode) -> str:
    return (start_of(node) or "").partition(".")[0]
