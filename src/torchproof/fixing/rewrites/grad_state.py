"""`requires_grad` set in compiled code, and contexts that tracing cannot enter."""

from __future__ import annotations

import re

import libcst as cst

from torchproof.fixing.rewrites.effects import unless_compiling
from torchproof.fixing.rewrites.names import only, uses_of
from torchproof.fixing.rewrites.operators import nodes
from torchproof.fixing.rewrites.site import Changes, Draft, NoPattern, Refused, Site
from torchproof.fixing.rewrites.values import Values

# Contexts that choose an algorithm, or only watch: the values are the same but for
# rounding.
_OPTIONAL = re.compile(
    r"torch\.backends\.\w+\.(?:flags|sdp_kernel|allow_tf32)"
    r"|torch\.(?:autograd\.)?profiler\.(?:record_function|profile)"
    r"|torch\.cuda\.nvtx\.range|nvtx\.\w+|torch\.backends\.cuda\.sdp_kernel"
    r"|(?:\w+\.)*(?:timer|Timer|timed|stopwatch|profile|record_function)"
)
_CLOCK = re.compile(r"(?<![\w.])(?:time\.)?(?:time|perf_counter|monotonic)(?:_ns)?\(\)")


def call_requires_grad(site: Site) -> Draft:
    """`x.requires_grad = True` becomes `x.requires_grad_()`, which can be traced."""
    tensor, flag = _set_at(site)
    argument = "" if flag == "True" else flag
    text = f"{site.code(tensor)}.requires_grad_({argument})\n"
    changes: Changes = {site.statement: [cst.parse_statement(text)]}
    return Draft("set requires_grad with a method", site.replaced(changes))


def skip_requires_grad(site: Site) -> Draft:
    """Leaves `requires_grad` of a local tensor alone while compiling.

    Gradients of parameters are the same. The tensor's own gradient could only be read
    if the function passed the tensor on.
    """
    tensor, _ = _set_at(site)
    if not isinstance(tensor, cst.Name):
        raise Refused(f"`{site.code(tensor)}` may be read outside the function")
    for use in uses_of(site.function, tensor.value):
        above = site.parent(use)
        if isinstance(above, cst.AssignTarget) and site.line < _line(use, site):
            break  # from here on, the name is another tensor
        if isinstance(above, cst.Return) or _is_attribute_of(above, "grad"):
            raise Refused(f"`{tensor.value}` or its gradient is used afterwards")
    changes: Changes = {site.statement: [unless_compiling([site.statement])]}
    text = site.replaced(changes, ["torch"])
    return Draft("leave requires_grad alone while compiling", text, "unsafe")


def _line(node: cst.CSTNode, site: Site) -> int:
    return site.range_of(node).start.line


def _set_at(site: Site) -> tuple[cst.BaseExpression, str]:
    """The tensor and the flag of `x.requires_grad = flag` or its method."""
    match only(site.statement):
        case cst.Assign(
            [cst.AssignTarget(cst.Attribute(tensor, cst.Name("requires_grad")))], flag
        ):
            return tensor, site.code(flag)
        case cst.Expr(
            cst.Call(cst.Attribute(tensor, cst.Name("requires_grad_")), arguments)
        ):
            flags = ", ".join(site.code(each.value) for each in arguments)
            return tensor, flags or "True"
    raise NoPattern("the statement does not set requires_grad")


def _is_attribute_of(node: cst.CSTNode | None, name: str) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == name


def skip_context(site: Site) -> Draft:
    """Enters contextlib.nullcontext() instead of optional contexts, if compiling."""
    values = Values(site)
    if not any(_is_optional(i, values) for n in _withs(site) for i in n.items):
        raise NoPattern("no context here can be left out")
    changes: Changes = {
        item.item: cst.parse_expression(
            "contextlib.nullcontext() if torch.compiler.is_compiling() else"
            f" {site.code(item.item)}"
        )
        for node in nodes(site.function)
        if isinstance(node, cst.With)
        for item in node.items
        if _is_optional(item, values)
    }
    text = site.replaced(changes, ["contextlib", "torch"])
    return Draft("leave the context and its effect out while compiling", text, "unsafe")


def _withs(site: Site) -> list[cst.With]:
    """The `with` statements at a site, innermost first."""
    around = [n for n in site.ancestors(site.statement) if isinstance(n, cst.With)]
    at = [site.statement] if isinstance(site.statement, cst.With) else []
    return [*at, *around]


def _is_optional(item: cst.WithItem, values: Values) -> bool:
    call = item.item
    if item.asname is not None or not isinstance(call, cst.Call):
        return False
    pure = all(values.is_pure(each.value) for each in call.args)
    name = values.dotted(call.func)
    is_known = _OPTIONAL.fullmatch(name) is not None
    return pure and (is_known or _reads_clocks(name, values.site))


def _reads_clocks(name: str, site: Site) -> bool:
    """Whether a class or a function of the module reads a clock, and uses no torch."""
    for each in site.module.body:
        if isinstance(each, cst.ClassDef | cst.FunctionDef) and each.name.value == name:
            text = site.code(each)
            return _CLOCK.search(text) is not None and "torch" not in text
    return False
