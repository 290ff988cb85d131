"""Tensors that outlive their memory in a CUDA graph: what keeps them gets a copy."""

from __future__ import annotations

import libcst as cst

from torchproof.fixing.rewrites.names import (
    changed_in_place,
    later,
    may_share,
    only,
    start_of,
)
from torchproof.fixing.rewrites.operators import brief, dotted
from torchproof.fixing.rewrites.site import (
    Draft,
    Refused,
    Site,
    statements,
)

_KEEPS = {"append", "appendleft", "add", "put", "insert", "setdefault"}


def clone(site: Site) -> Draft:
    """What a statement keeps of a CUDA graph's outputs becomes a copy."""
    small = only(site.statement)
    if small is None:
        raise Refused(f"`{brief(site.statement)}` is more than one statement")
    title = "keep a .clone(), which the next step does not overwrite"
    if isinstance(small, cst.Assign) and (names := _unpacked(small)):
        copies = ", ".join(f"{name}.clone()" for name in names)
        line = statements(f"{', '.join(names)} = {copies}\n")
        return Draft(title, site.replaced({site.statement: [site.statement, *line]}))
    value = _tensor(small)
    if isinstance(value, cst.ListComp | cst.GeneratorExp):
        value = value.elt
    _assert_not_written(site, small, value)
    return Draft(title, site.replaced({value: _copy_of(value)}))


def _unpacked(assignment: cst.Assign) -> list[str]:
    """The names of `a, b = f(x)`; empty if it is another assignment."""
    target = assignment.targets[0].target
    if len(assignment.targets) > 1 or not isinstance(target, cst.Tuple):
        return []
    plain = [each for each in target.elements if isinstance(each, cst.Element)]
    values = [each.value for each in plain]
    names = [each.value for each in values if isinstance(each, cst.Name)]
    if len(names) < len(target.elements):
        raise Refused(f"`{brief(target)}` keeps more than tensors in variables")
    return names


def _tensor(small: cst.BaseSmallStatement) -> cst.BaseExpression:
    """The value that a statement keeps, gives to a container, returns or yields."""
    match small:
        case cst.Expr(
            cst.Call(cst.Attribute(attr=cst.Name(name)), [*_, cst.Arg(kept)])
        ):
            if name in _KEEPS:
                return kept
        case (
            cst.Expr(cst.Yield(value)) | cst.Return(value) | cst.AnnAssign(value=value)
        ):
            if isinstance(value, cst.BaseExpression):
                return value
        case cst.Assign(value=value):
            return value
    raise Refused(f"`{brief(small)}` does not show which tensor it keeps")


def _assert_not_written(
    site: Site, small: cst.BaseSmallStatement, value: cst.BaseExpression
) -> None:
    """Refuses if the tensor is changed later, through what is kept or the variable."""
    kept = start_of(value)
    if kept is None:  # the result of a function, which has no other name
        return
    names = {kept, *_targets(small)}
    for changed in changed_in_place(later(site, site.statement)):
        if any(may_share(site.function, changed, name) for name in names):
            raise Refused(f"`{changed}` is changed in place after it is kept")


def _targets(small: cst.BaseSmallStatement) -> set[str]:
    """Where an assignment keeps its value, as far as that has a name."""
    targets = [each.target for each in getattr(small, "targets", ())]
    return {name for each in targets if (name := dotted(each)) is not None}


def _copy_of(value: cst.BaseExpression) -> cst.BaseExpression:
    if not isinstance(value, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
        raise Refused(f"`{brief(value)}` may be more than a tensor")
    method = value.func if isinstance(value, cst.Call) else None
    if isinstance(method, cst.Attribute) and method.attr.value == "clone":
        raise Refused(
            f"`{brief(value)}` is a copy in the graph, whose memory is reused too:"
            " copy it outside the compiled function"
        )
    return cst.Call(cst.Attribute(value, cst.Name("clone")))
