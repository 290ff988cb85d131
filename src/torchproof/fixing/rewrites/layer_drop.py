"""LayerDrop and stochastic depth: a random draw decides whether a layer runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites.names import (
    assigned,
    assigned_name,
    body,
    ends_with,
    fresh,
    is_input,
    is_needed_after,
    only,
    reads,
)
from torchproof.fixing.rewrites.operators import nodes
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    Statement,
    statements,
)
from torchproof.fixing.rewrites.values import Values
from torchproof.records import Tier

# Functions that return a number in [0, 1).
_DRAWS = words(
    "torch.rand random.random random.uniform numpy.random.rand numpy.random.random"
    " numpy.random.uniform numpy.random.random_sample"
)
_REVERSED: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
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
        tier: Tier = "unsafe" if unequal or isinstance(draw, cst.Call) else "safe"
        changes: Changes = {comparison: _fitting(site, comparison, new)}
        title = f"compare the random number only where `{rate_text}` is not 0"
        return Draft(title, site.replaced(changes), tier, needs_run=True)
    raise NoPattern("no random number is compared with a rate here")


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
    yield from (each for each in nodes(test) if isinstance(each, cst.Comparison))
    names = reads(test)
    for each in nodes(site.function):
        name, value = assigned_name(each)
        if value is not None and name in names:
            yield from (e for e in nodes(value) if isinstance(e, cst.Comparison))


def _draw_and_rate(
    node: cst.Comparison, values: Values, site: Site
) -> tuple[cst.BaseExpression, cst.BaseCompOp, cst.BaseExpression] | None:
    """The parts of `draw < rate`, in this order."""
    if len(node.comparisons) != 1:
        return None
    [compared] = node.comparisons
    operator: cst.BaseCompOp = compared.operator
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
            for each in nodes(site.function)
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


# -- rates above 0 ---------------------------------------------------------------------


def _is_plain(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name | cst.Attribute)


def select(site: Site) -> Draft:
    """Compiled code runs the layer in any case, and selects its input or its output.

    There, a layer that is skipped draws its own random numbers all the same, so that
    the stream of random numbers is another one, and its gradients are 0 and not None.
    """
    values = Values(site)
    if not any(_draw_and_rate(c, values, site) for c in _comparisons(site)):
        raise NoPattern("no random number is compared with a rate here")
    branch = site.statement
    if not isinstance(branch, cst.If) or branch.orelse is not None:
        raise NoPattern("the random number does not decide about one layer")
    lines = body(branch)
    if len(lines) == 1 and ends_with(lines, cst.Continue):
        changes = _after_continue(site, branch)
    else:
        changes = _selected(site, branch, _skip_name(branch, site))
    text = site.replaced(changes, ["torch"])
    title = "run the layer while compiling, select with torch.where"
    return Draft(title, text, "unsafe")


def _skip_name(branch: cst.If, site: Site) -> str:
    """The `skip` of `if not skip:` and of `if not skip or synced:`."""
    test = branch.test
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        test = test.left
    if isinstance(test, cst.UnaryOperation) and isinstance(test.expression, cst.Name):
        return test.expression.value
    raise Refused(f"`{site.code(branch.test)}` is not the name of a condition")


def _selected(site: Site, branch: cst.If, skip: str) -> Changes:
    """`if not skip: h = layer(h)` with torch.where, for a `skip` that is a tensor."""
    if branch.orelse is not None:
        raise NoPattern("more than one value depends on the random number")
    test, others = branch.test, ""
    if isinstance(test, cst.BooleanOperation):
        text = site.code(test.right)
        others = f" and not {text if _is_plain(test.right) else f'({text})'}"
    layer = list(branch.body.body)
    chosen = _choice(site, layer, skip, others=others, test=site.code(test))
    return {branch: [chosen.with_changes(leading_lines=branch.leading_lines)]}


def _choice(
    site: Site, layer: Sequence[cst.CSTNode], skip: str, *, others: str = "", test: str
) -> cst.If:
    """Runs the layer, and takes its input instead of its output if it is skipped."""
    found = _changed(site, layer)
    before = [fresh(site.function, f"{name}_before") for name in found]
    kept, *selected = (
        f"{', '.join(before)} = {', '.join(found)}",
        *(
            f"{name} = torch.where({skip}.to({name}.device), {old}, {name})"
            for name, old in zip(found, before, strict=True)
        ),
    )
    is_tensor = f"isinstance({skip}, torch.Tensor)"
    text = (
        f"if torch.compiler.is_compiling() and {is_tensor}{others}:\n    pass\n"
        f"elif {test}:\n    pass\n"
    )
    [branch] = statements(text)
    assert isinstance(branch, cst.If) and isinstance(branch.orelse, cst.If)
    lines = [each for each in layer if isinstance(each, cst.BaseStatement)]
    first = [
        *statements(kept),
        _without_comments(lines[0]),
        *lines[1:],
        *statements("\n".join(selected)),
    ]
    other = branch.orelse.with_changes(body=cst.IndentedBlock(lines))
    return branch.with_changes(body=cst.IndentedBlock(first), orelse=other)


def _changed(site: Site, layer: Sequence[cst.CSTNode]) -> list[str]:
    """The values that are used after a layer; each is one of its inputs too."""
    found: list[str] = []
    computed: set[str] = set()  # from what the layer returns
    for line in layer:
        small = only(line)
        if not isinstance(small, cst.Assign) or len(small.targets) != 1:
            raise NoPattern("the random number does not decide about one layer")
        target = small.targets[0].target
        parts = [e.value for e in getattr(target, "elements", ())] or [target]
        found += [each.value for each in parts if isinstance(each, cst.Name)]
        if computed & reads(line) or any(isinstance(e, cst.Call) for e in nodes(small)):
            computed |= assigned(line)
        if not all(isinstance(each, cst.Name) for each in parts):
            raise NoPattern("the layer stores to more than names")
    last = layer[-1]
    assert isinstance(last, cst.BaseStatement)
    inputs = {name for name in found if is_input(layer, name)}
    carried = inputs if site.around(last, cst.For) else set()
    needed = [
        name
        for name in dict.fromkeys(found)
        if name in carried or is_needed_after(site, last, name)
    ]
    if not needed or not inputs.issuperset(needed):
        raise NoPattern("a value after the layer is none before it")
    if not computed.issuperset(needed):
        raise NoPattern("a value after the layer is none of its results")
    return needed


def _without_comments(statement: cst.BaseStatement) -> cst.BaseStatement:
    return statement.with_changes(leading_lines=())


def _after_continue(site: Site, branch: cst.If) -> Changes:
    """`if draw < rate: continue` with the layer after it."""
    loop = site.around(branch, cst.For)
    outer: cst.CSTNode = branch
    if loop is not None and branch not in loop.body.body:
        outer = site.around(branch, cst.If) or branch
    block = list(loop.body.body) if loop is not None else []
    if outer not in block:
        raise NoPattern("the random number does not decide about one layer")
    rest = block[block.index(outer) + 1 :]
    if not rest:
        raise NoPattern("no layer depends on the random number")
    skip = fresh(site.function, "skip_layer")
    decided = statements(f"{skip} = {site.code(branch.test)}\n")
    changes: Changes = {
        branch: decided,
        **dict.fromkeys(rest[1:], ()),
        rest[0]: [_choice(site, rest, skip, test=f"not {skip}")],
    }
    before = statements(f"{skip} = False\n")
    if outer is not branch:
        changes[outer] = _with_inner(outer, branch, [*before], decided)
        del changes[branch]
    return changes


def _with_inner(
    outer: cst.CSTNode,
    branch: cst.If,
    before: list[Statement],
    decided: list[Statement],
) -> list[Statement]:
    assert isinstance(outer, cst.If)
    inner = [
        new
        for each in outer.body.body
        for new in (decided if each is branch else [each])
    ]
    body = outer.body.with_changes(body=inner)
    return [*before, outer.with_changes(body=body, leading_lines=())]
