"""LayerDrop and stochastic depth: a random draw decides whether a layer runs."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites.site import Changes, Draft, Refused, Site
from torchproof.fixing.rewrites.values import (
    Values,
    assigned_name,
    names_read,
    walk,
)

# Functions that return a number in [0, 1).
_DRAWS = words(
    "torch.rand random.random random.uniform numpy.random.rand numpy.random.random"
    " numpy.random.uniform numpy.random.random_sample"
)
_REVERSED = {
    cst.LessThan: cst.GreaterThan,
    cst.LessThanEqual: cst.GreaterThanEqual,
    cst.GreaterThan: cst.LessThan,
    cst.GreaterThanEqual: cst.LessThanEqual,
}


def rate_first(site: Site) -> Draft:
    """`if draw < p` becomes `if p > 0 and draw < p`: no draw is below a p of 0.

    Where p is 0, tracing knows the answer. The number is still drawn, so the stream of
    random numbers stays the same.
    """
    values = Values(site)
    for comparison in _comparisons(site):
        found = _draw_and_rate(comparison, values, site)
        if found is None:
            continue
        draw, operator, rate = found
        text, rate_text = site.code(comparison), site.code(rate)
        if comparison.lpar:
            text = text[1:-1]
        if isinstance(operator, cst.LessThan | cst.LessThanEqual):
            new = f"({rate_text} > 0 and {text})"
        else:
            new = f"({rate_text} <= 0 or {text})"
        # With these operators a draw of exactly 0 gives another answer; a draw that is
        # not made leaves the stream of random numbers at another place.
        unequal = isinstance(operator, cst.LessThanEqual | cst.GreaterThan)
        tier = "unsafe" if unequal or isinstance(draw, cst.Call) else "safe"
        changes: Changes = {comparison: _fitting(site, comparison, new)}
        title = f"compare the random number only where `{rate_text}` is not 0"
        return Draft(title, site.replaced(changes), tier)
    raise Refused("no random number is compared with a rate here")


def _fitting(site: Site, comparison: cst.Comparison, text: str) -> cst.BaseExpression:
    """The new condition, without brackets where none are needed."""
    parent = site.parent(comparison)
    conjunction = isinstance(parent, cst.BooleanOperation) and isinstance(
        parent.operator, cst.And
    )
    plain = isinstance(parent, cst.If | cst.Assign) or (
        conjunction and " and " in text and parent.right is comparison  # type: ignore[union-attr]
    )
    if plain and not comparison.lpar:
        text = text[1:-1]
    return cst.parse_expression(text)


def _comparisons(site: Site) -> Iterator[cst.Comparison]:
    """The comparisons that decide at a site, and those behind the names it reads."""
    statement = site.statement
    test = getattr(statement, "test", statement)
    yield from (each for each in walk(test) if isinstance(each, cst.Comparison))
    names = names_read(test)
    for each in walk(site.function):
        name, value = assigned_name(each)
        if value is not None and name in names:
            yield from (e for e in walk(value) if isinstance(e, cst.Comparison))


def _draw_and_rate(
    node: cst.Comparison, values: Values, site: Site
) -> tuple[cst.BaseExpression, cst.BaseCompOp, cst.BaseExpression] | None:
    """The parts of `draw < rate`, in this order."""
    if len(node.comparisons) != 1:
        return None
    [compared] = node.comparisons
    operator = compared.operator
    if type(operator) not in _REVERSED:
        return None
    left, right = node.left, compared.comparator
    if _is_draw(right, values, site):
        left, right, operator = right, left, _REVERSED[type(operator)]()
    if not _is_draw(left, values, site):
        return None
    plain = isinstance(right, cst.Name | cst.Attribute) and not values.is_tensor(right)
    return (left, operator, right) if plain else None


def _is_draw(node: cst.BaseExpression, values: Values, site: Site) -> bool:
    """Whether an expression is a number from [0, 1), or a name for one."""
    if isinstance(node, cst.Name):
        assigned = [
            value
            for each in walk(site.function)
            for name, value in [assigned_name(each)]
            if name == node.value and value is not None
        ]
        return bool(assigned) and all(_is_draw(v, values, site) for v in assigned)
    if not isinstance(node, cst.Call):
        return False
    called = node.func
    if isinstance(called, cst.Attribute) and called.attr.value == "item":
        return _is_draw(called.value, values, site)
    name = values.dotted(called).replace("np.", "numpy.", 1)
    if name not in _DRAWS:
        return False
    if not name.endswith("uniform"):
        return True
    bounds = [site.code(each.value) for each in node.args]
    return bounds in ([], ["0", "1"], ["0.0", "1.0"], ["0", "1.0"], ["0.0", "1"])
