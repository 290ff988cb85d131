"""Contexts that tracing cannot enter."""

from __future__ import annotations

import re

import libcst as cst

from torchproof.fixing.rewrites.operators import nodes
from torchproof.fixing.rewrites.site import Changes, Draft, NoPattern, Site
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


def skip(site: Site) -> Draft:
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
