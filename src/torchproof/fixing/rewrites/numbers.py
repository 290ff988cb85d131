"""Python numbers that are computed with numpy: `sum` and `math` instead.

`np.sum([2, 3])` is traced as a tensor, whose value tracing does not know.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from torchproof.checking import Kind
from torchproof.fixing.rewrites.names import assigned_name, reads
from torchproof.fixing.rewrites.operators import nodes
from torchproof.fixing.rewrites.site import Changes, Draft, NoPattern, Site
from torchproof.fixing.rewrites.values import Values

# Functions of numpy on numbers, and on sequences of them, with the same value.
_OF_NUMBERS = {
    "lcm": "math.lcm",
    "gcd": "math.gcd",
    "sqrt": "math.sqrt",
    "log2": "math.log2",
    "abs": "abs",
    "absolute": "abs",
    "maximum": "max",
    "minimum": "min",
}
_OF_SEQUENCES = {
    "sum": "sum",
    "prod": "math.prod",
    "max": "max",
    "min": "min",
    "amax": "max",
    "amin": "min",
}


def in_python(site: Site) -> Draft:
    """Computes with Python numbers what the statement computes with numpy."""
    values = Values(site)
    changes: Changes = {}
    texts: list[str] = []
    for node in _calls(site):
        inside = any(above in changes for above in site.ancestors(node))
        text = None if inside else _python(node, values, site)
        if text is not None:
            texts.append(text)
            changes[node] = cst.parse_expression(text)
    if not changes:
        raise NoPattern("no number is computed with numpy here")
    imports = ["math"] if any("math." in text for text in texts) else []
    return Draft("compute the number in Python", site.replaced(changes, imports))


def _calls(site: Site) -> Iterator[cst.Call]:
    """The calls at a site, outer ones first, and those behind the names it reads.

    A number may come from another function of the file, which computes it with numpy.
    """
    statement = site.statement
    header = getattr(statement, "test", None) or getattr(statement, "iter", None)
    found = [n for n in nodes(header or statement) if isinstance(n, cst.Call)]
    names = reads(header or statement)
    for _ in range(2):
        for each in nodes(site.function.body):
            name, value = assigned_name(each)
            if value is not None and name in names:
                names |= reads(value)
                found += [n for n in nodes(value) if isinstance(n, cst.Call)]
    functions = {
        each.name.value: each
        for each in site.module.body
        if isinstance(each, cst.FunctionDef)
    }
    for call in list(found):
        called = call.func.value if isinstance(call.func, cst.Name) else ""
        if called in functions:
            found += [n for n in nodes(functions[called]) if isinstance(n, cst.Call)]
    yield from dict.fromkeys(found)


def _python(node: cst.Call, values: Values, site: Site) -> str | None:
    """The same number without numpy; None if that is not known."""
    name = values.dotted(node.func).replace("np.", "numpy.", 1)
    module, _, function = name.rpartition(".")
    arguments = [each.value for each in node.args]
    is_method = isinstance(site.parent(node), cst.Attribute)  # of the result
    if module != "numpy" or is_method or not arguments:
        return None
    if any(each.keyword or each.star for each in node.args):
        return None
    known = _OF_NUMBERS | (_OF_SEQUENCES if len(arguments) == 1 else {})
    if function not in known or any(_is_array(each, values) for each in arguments):
        return None
    return f"{known[function]}({', '.join(map(site.code, arguments))})"


def _is_array(node: cst.CSTNode, values: Values) -> bool:
    """Whether a value is a tensor or an array, or is computed from one."""
    if isinstance(node, cst.BaseExpression):
        kind = values.kind(node)
        if kind.is_tensor or kind in (Kind.ARRAY, Kind.TENSORS):
            return True
        if kind.is_plain or kind is Kind.SIZES:
            return False  # as the shape of a tensor is
    return any(_is_array(child, values) for child in node.children)
