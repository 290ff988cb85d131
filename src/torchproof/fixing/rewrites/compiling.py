"""Calls of torch.compile whose result is not what runs, and optimizers they recompile.

The compiled object goes where the original is called, or the module is compiled in
place, so that whoever holds it calls compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from torchproof.fixing.rewrites.names import only
from torchproof.fixing.rewrites.operators import brief, dotted, nodes
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    statements,
)
from torchproof.fixing.rewrites.values import Values


@dataclass(frozen=True)
class _Compile:
    """A statement with `torch.compile(subject, ...)`."""

    line: cst.SimpleStatementLine
    call: cst.Call
    subject: cst.BaseExpression
    options: str  # the other arguments
    result: str | None  # the name that the result is assigned to; empty if it has none


def assign(site: Site) -> Draft:
    """`torch.compile(model)` alone becomes `model = torch.compile(model)`."""
    found = _only([c for c in _compiles(site) if c.result is None], site)
    name = dotted(found.subject)
    if name is None:
        raise Refused(f"`{brief(found.subject)}` has no name")
    new = statements(f"{name} = {site.code(found.call)}\n")
    title = "use what torch.compile returns"
    return Draft(title, site.replaced({found.line: new}))


def call_result(site: Site) -> Draft:
    """Calls what `torch.compile` returned, where the original is called."""
    line = site.statement
    for found in _compiles(site):
        old, new = dotted(found.subject), found.result
        if not old or not new or not _is_same_scope(site, found, old, new):
            continue
        calls = [
            node
            for node in nodes(line)
            if isinstance(node, cst.Call) and dotted(node.func) == old
        ]
        if calls and old != new:
            target = cst.parse_expression(new)
            changes: Changes = {call.func: target for call in calls}
            return Draft("call the compiled one", site.replaced(changes))
    raise NoPattern("the original of a compiled object is not called here")


def _is_same_scope(site: Site, found: _Compile, old: str, new: str) -> bool:
    """Whether both names mean the same where the original is called."""
    if old.startswith("self.") and new.startswith("self."):
        owners = [site.around(n, cst.ClassDef) for n in (found.line, site.function)]
        return owners[0] is not None and owners[0] is owners[1]
    around = site.around(found.line, cst.FunctionDef)
    return around is None or around in (site.function, *site.ancestors(site.function))


def in_place(site: Site) -> Draft:
    """`compiled = torch.compile(model)` becomes `model.compile(); compiled = model`."""
    found = _only(_compiles(site), site)
    is_made = isinstance(found.subject, cst.Call)  # its name is that of the result
    name = found.result if is_made else dotted(found.subject)
    if not name:
        raise NoPattern("the compiled module has no name")
    lines = [f"{name}.compile({found.options})"]
    if is_made:
        lines = [f"{name} = {site.code(found.subject)}", *lines]
    elif found.result and found.result != name:
        lines = [*lines, f"{found.result} = {name}"]
    changes: Changes = {found.line: statements("\n".join(lines) + "\n")}
    return Draft("compile the module in place", site.replaced(changes))


def method(site: Site) -> Draft:
    """Compiles the method that is called, instead of or besides `forward`."""
    line = site.statement
    for found in _compiles(site):
        holder = found.result
        for node in nodes(line):
            called = node.func if isinstance(node, cst.Call) else None
            if not isinstance(called, cst.Attribute) or not holder:
                continue
            if dotted(called.value) == holder:
                name = f"{holder}.{called.attr.value}"
                options = f", {found.options}" if found.options else ""
                text = f"{name} = torch.compile({name}{options})\n"
                if _is_called(site, holder):
                    first = site.module.code_for_node(found.line.body[0])
                else:  # compiling forward too would compile what never runs
                    first = f"{holder} = {site.code(found.subject)}"
                changes: Changes = {found.line: statements(f"{first}\n{text}")}
                title = f"compile {called.attr.value}, the method that is called"
                return Draft(title, site.replaced(changes))
    raise NoPattern("no method of a compiled module is called here")


def _is_called(site: Site, name: str) -> bool:
    return any(
        isinstance(node, cst.Call) and dotted(node.func) == name
        for node in nodes(site.module)
    )


def _compiles(site: Site) -> list[_Compile]:
    """The calls of torch.compile in the file, as statements of their own."""
    values = Values(site)
    found = []
    for line in nodes(site.module):
        match small := only(line):
            case cst.Expr(cst.Call() as call) | cst.Assign([_], cst.Call() as call) if (
                values.dotted(call.func) == "torch.compile" and call.args
            ):
                first, *rest = call.args
                if first.keyword is not None or first.star:
                    continue
                options = ", ".join(site.code(each).rstrip(", ") for each in rest)
                result = None
                if isinstance(small, cst.Assign):
                    result = dotted(small.targets[0].target) or ""
                statement = cst.ensure_type(line, cst.SimpleStatementLine)
                found.append(_Compile(statement, call, first.value, options, result))
    return found


def _only(found: list[_Compile], site: Site) -> _Compile:
    """The statement at the finding's line, else the only one of the file."""
    here = [each for each in found if site.range_of(each.line).start.line == site.line]
    if len(here or found) != 1:
        many = "no call" if not found else "several calls"
        raise NoPattern(f"the file has {many} of torch.compile that could be meant")
    return (here or found)[0]


# -- optimizers ------------------------------------------------------------------------


def learning_rate(site: Site) -> Draft:
    """`lr=0.1` becomes `lr=torch.tensor(0.1)`: a change is no new constant."""
    values = Values(site)
    rates = []
    for node in nodes(site.module):
        if not isinstance(node, cst.Call):
            continue
        if not values.dotted(node.func).startswith("torch.optim."):
            continue
        rates += [a for a in node.args if a.keyword and a.keyword.value == "lr"]
    rates = [a for a in rates if "tensor" not in site.code(a.value)]
    if len(rates) != 1:
        raise Refused("the file has not exactly one optimizer with `lr=`")
    [rate] = rates
    new = cst.parse_expression(f"torch.tensor({site.code(rate.value)})")
    changes: Changes = {rate.value: new}
    title = "make the learning rate a tensor: lr=torch.tensor(...)"
    return Draft(title, site.replaced(changes, ["torch"]))
