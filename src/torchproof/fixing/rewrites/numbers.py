"""Python numbers that are computed with torch or numpy: `//`, `sum` and `math` instead.

`torch.div(5, 2, rounding_mode="floor")` is a tensor, whose value tracing does not know.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from torchproof.checking import Kind
from torchproof.fixing.rewrites.formatting import parenthesised
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
_ROUNDINGS = {"ceil": "math.ceil", "floor": "math.floor"}
_OPERATORS = (cst.BinaryOperation, cst.UnaryOperation, cst.Attribute, cst.Subscript)


def in_python(site: Site) -> Draft:
    """Computes with Python numbers what the statement computes with torch or numpy."""
    values = Values(site)
    changes: Changes = {}
    texts: list[str] = []
    for node in _calls(site):
        inside = any(above in changes for above in site.ancestors(node))
        text = None if inside else _python(node, values, site)
        if text is not None:
            texts.append(text)
            changes[node] = cst.parse_expression(_grouped(text, node, site))
    if not changes:
        raise NoPattern("no number is computed with torch or numpy here")
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
    """The same number without torch and numpy; None if that is not known."""
    if isinstance(site.parent(node), cst.Attribute) and not _is_read(node, site):
        return None  # a method of the result
    name = values.dotted(node.func).replace("np.", "numpy.", 1)
    if name in ("torch.div", "torch.divide", "torch.floor_divide"):
        return _quotient(node, values, site)
    read = _read(node, values)
    if read is not None:
        return _rounded(read, values, site)
    module, _, function = name.rpartition(".")
    if module == "numpy" and not any(each.keyword or each.star for each in node.args):
        arguments = [each.value for each in node.args]
        return _of_numpy(function, arguments, values, site)
    return None


def _quotient(node: cst.Call, values: Values, site: Site) -> str | None:
    """`a // b`, which is the same for numbers and for tensors.

    Rounding towards 0 is the same only for numbers that are not negative.
    """
    keywords = {each.keyword.value: each.value for each in node.args if each.keyword}
    operands = [each.value for each in node.args if not each.keyword]
    if len(operands) != 2 or set(keywords) - {"rounding_mode"}:
        return None
    mode = keywords.get("rounding_mode")
    rounding = mode.evaluated_value if isinstance(mode, cst.SimpleString) else None
    if values.dotted(node.func).endswith("floor_divide"):
        rounding = "floor"
    left, right = (parenthesised(site.code(each)) for each in operands)
    plain = values.kind(operands[0]) in (Kind.LENGTH, Kind.SIZE)
    if rounding == "trunc" and plain and not values.is_tensor(operands[1]):
        counts = all(_is_count(each) for each in operands)
        return f"{left} // {right}" if counts else f"int({left} / {right})"
    return f"{left} // {right}" if rounding == "floor" else None


def _is_count(node: cst.BaseExpression) -> bool:
    """Whether an expression is certainly not negative: a size, or a literal."""
    if isinstance(node, cst.Subscript):
        node = node.value
        return isinstance(node, cst.Attribute) and node.attr.value == "shape"
    if isinstance(node, cst.Call):
        called = node.func
        is_size = isinstance(called, cst.Attribute) and called.attr.value == "size"
        return is_size or (isinstance(called, cst.Name) and called.value == "len")
    return isinstance(node, cst.Integer)


def _read(node: cst.Call, values: Values) -> cst.BaseExpression | None:
    """The `x` of `x.item()` and `int(x)`."""
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "item":
        return node.func.value
    if values.dotted(node.func) == "int" and len(node.args) == 1:
        return node.args[0].value
    return None


def _is_read(node: cst.Call, site: Site) -> bool:
    above = site.parent(node)
    return isinstance(above, cst.Attribute) and above.attr.value == "item"


def _of_numpy(
    function: str, arguments: list[cst.BaseExpression], values: Values, site: Site
) -> str | None:
    if not arguments or any(_is_array(each, values) for each in arguments):
        return None
    texts = ", ".join(site.code(each) for each in arguments)
    if function in _OF_NUMBERS:
        return f"{_OF_NUMBERS[function]}({texts})"
    if function in _OF_SEQUENCES and len(arguments) == 1:
        return f"{_OF_SEQUENCES[function]}({texts})"
    return None


def _rounded(node: cst.BaseExpression, values: Values, site: Site) -> str | None:
    """`int(np.ceil(x))`: math.ceil returns an int already."""
    if not isinstance(node, cst.Call) or len(node.args) != 1:
        return None
    name = values.dotted(node.func).replace("np.", "numpy.", 1)
    module, _, function = name.rpartition(".")
    if module != "numpy" or function not in _ROUNDINGS:
        return None
    argument = node.args[0].value
    if _is_array(argument, values):
        return None
    return f"{_ROUNDINGS[function]}({site.code(argument)})"


def _is_array(node: cst.CSTNode, values: Values) -> bool:
    """Whether a value is a tensor or an array, or is computed from one."""
    if isinstance(node, cst.BaseExpression):
        kind = values.kind(node)
        if kind.is_tensor or kind in (Kind.ARRAY, Kind.TENSORS):
            return True
        if kind.is_plain or kind is Kind.SIZES:
            return False  # as the shape of a tensor is
    return any(_is_array(child, values) for child in node.children)


def _grouped(text: str, node: cst.Call, site: Site) -> str:
    """Brackets around `a // b` where an operator would take a part of it."""
    above = site.parent(node)
    if "//" not in text or not isinstance(above, _OPERATORS):
        return text
    weaker = isinstance(above, cst.BinaryOperation) and isinstance(
        above.operator, cst.Add | cst.Subtract
    )
    return text if weaker else f"({text})"
