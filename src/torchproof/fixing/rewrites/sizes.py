"""Comparisons of dynamic sizes, where an operator needs True or False."""

from __future__ import annotations

import libcst as cst

from torchproof.checking import Kind
from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.operators import nodes
from torchproof.fixing.rewrites.site import Changes, Draft, Refused, Site
from torchproof.fixing.rewrites.values import Values


def plain_condition(site: Site) -> Draft:
    """`is_causal=n > 1` becomes `is_causal=True if n > 1 else False`: a guard."""
    found = [
        argument.value
        for call in nodes(site.expression or site.statement)
        if isinstance(call, cst.Call)
        for argument in call.args
        if argument.keyword is not None and _is_condition(site, argument.value)
    ]
    if not found:
        raise Refused("no argument here is a comparison of sizes")
    changes: Changes = {}
    for value in found:
        bare = value.with_changes(lpar=[], rpar=[])
        text = site.module.code_for_node(bare).strip()
        changes[value] = cst.parse_expression(f"True if {text} else False")
    title = "decide by the size while tracing, with a guard"
    return Draft(title, site.replaced(changes))


def _is_condition(site: Site, value: cst.BaseExpression) -> bool:
    """Whether a value is a comparison of sizes, or a name for one."""
    if Values(site).kind(value) is Kind.CONDITION:
        return True
    if isinstance(value, cst.Comparison):
        return any(_is_size(node) for node in nodes(value))
    if not isinstance(value, cst.Name):
        return False
    meanings = names.values_of(site.function, value.value)
    return bool(meanings) and all(
        isinstance(each, cst.Comparison) and any(_is_size(node) for node in nodes(each))
        for each in meanings
    )


def _is_size(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value in ("shape", "size")
