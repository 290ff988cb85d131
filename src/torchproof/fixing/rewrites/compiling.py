"""Calls of torch.compile whose result is not what runs, and optimizers they recompile.

The compiled object goes where the original is called, or the module is compiled in
place, so that whoever holds it calls compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

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
    result: cst.BaseExpression | None  # what the result is assigned to


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
        old, new = dotted(found.subject), found.result and dotted(found.result)
        if (
            not old
            or not new
            or old == new
            or not _is_same_scope(site, found, old, new)
        ):
            continue
        calls = [
            node
            for node in nodes(line)
            if isinstance(node, cst.Call) and dotted(node.func) == old
        ]
        if calls:
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
    name = _name(found)
    if name is None:
        raise NoPattern("the compiled module has no name")
    lines = [f"{name}.compile({found.options})"]
    result = dotted(found.result) if found.result is not None else None
    if isinstance(found.subject, cst.Call):
        lines = [f"{name} = {site.code(found.subject)}", *lines]
    elif result is not None and result != name:
        lines = [*lines, f"{result} = {name}"]
    changes: Changes = {found.line: statements("\n".join(lines) + "\n")}
    return Draft("compile the module in place", site.replaced(changes))


def _name(found: _Compile) -> str | None:
    """What the module is called: its own name, else that of the result."""
    if isinstance(found.subject, cst.Call):
        return dotted(found.result) if found.result is not None else None
    return dotted(found.subject)


def method(site: Site) -> Draft:
    """Compiles the method that is called, instead of or besides `forward`."""
    line = site.statement
    for found in _compiles(site):
        holder = dotted(found.result) if found.result is not None else None
        for node in nodes(line):
            called = node.func if isinstance(node, cst.Call) else None
            if not isinstance(called, cst.Attribute) or holder is None:
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
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            continue
        [small] = line.body
        value = getattr(small, "value", None)
        if not isinstance(value, cst.Call) or not value.args:
            continue
        if values.dotted(value.func) != "torch.compile":
            continue
        first, *rest = value.args
        if first.keyword is not None or first.star:
            continue
        options = ", ".join(site.code(each).rstrip(", ") for each in rest)
        if isinstance(small, cst.Expr):
            result = None
        elif isinstance(small, cst.Assign) and len(small.targets) == 1:
            result = small.targets[0].target
        else:
            continue
        assert result is None or isinstance(result, cst.BaseExpression)
        found.append(_Compile(line, value, first.value, options, result))
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
