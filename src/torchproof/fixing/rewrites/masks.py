"""Boolean masks as indices: the same result with tensors of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.formatting import parenthesised, wrapped
from torchproof.fixing.rewrites.operators import (
    ELEMENTWISE,
    brief,
    called,
    dotted,
    is_number,
    nodes,
    replaced_in,
)
from torchproof.fixing.rewrites.scalars import Scalars
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    statements,
)
from torchproof.fixing.rewrites.values import Values


def write(site: Site) -> Draft:
    """`out[m] = f(x[m])` becomes `out.copy_(torch.where(m, f(x), out))`."""
    steps = _steps(site)
    *first, last = steps
    target, value = _store(last)
    base, mask = _masked(target)
    place, test = site.code(base), site.code(mask)
    if dotted(base) is None or Values(site).effect(mask):
        raise Refused(f"`{brief(target)}` is not a named tensor with a mask")
    value = _substituted(site, first, value)
    reads = [each for each in _reads(value) if site.code(_index(each)) == test]
    if not reads:
        raise NoPattern("nothing is read with the mask that the result is stored with")
    _assert_elementwise(site, value, reads)
    _assert_broadcast(site, value, reads)
    lines = []
    if not isinstance(mask, cst.Name):
        name = names.fresh(site.function, "mask")
        lines.append(f"{name} = {test}")
        test = name
    if not _has_the_dimensions(site, mask, base):
        lines.append(
            _broadcast(test, place, new := names.fresh(site.function, "selected"))
        )
        test = new
    linear = _is_linear(value, reads)
    changes: dict[cst.CSTNode, cst.BaseExpression] = {}
    for each in reads:
        read = site.code(_masked(each)[0])
        text = read if linear else f"torch.where({test}, {read}, 1)"
        changes[each] = cst.parse_expression(text)
    computed = site.code(replaced_in(value, changes))
    if not isinstance(value, cst.Subscript):
        computed = f"{parenthesised(computed)}.to({place}.dtype)"
    if len(computed) > 50:
        name = names.fresh(site.function, "computed")
        lines.append(f"{name} = {computed}")
        computed = name
    lines.append(f"{place}.copy_(torch.where({test}, {computed}, {place}))")
    edits: Changes = dict.fromkeys(first, ())
    indent = len(site.indent(last))
    edits[last] = statements("".join(wrapped(line, indent) for line in lines))
    text = site.replaced(edits, imports=["torch"])
    return Draft("compute for all elements, select with torch.where", text)


def _steps(site: Site) -> list[cst.SimpleStatementLine]:
    """The statements from the first masked read to the store of the result."""
    begin = site.statement
    if not isinstance(begin, cst.SimpleStatementLine) or len(begin.body) != 1:
        raise NoPattern("the masked read is not in a statement of its own")
    if _is_store(begin):
        return [begin]
    steps, bound = [begin], _bound(begin)
    for each in names.following(site, begin):
        if not isinstance(each, cst.SimpleStatementLine) or len(each.body) != 1:
            break
        if not bound & names.reads(each):
            if bound & names.assigned(each):
                break
            continue
        steps.append(each)
        if _is_store(each):
            _assert_unused(site, bound, steps)
            return steps
        if not isinstance(each.body[0], cst.Assign):
            break
        bound |= _bound(each)
    raise NoPattern("what is read with the mask is not stored with it")


def _bound(line: cst.SimpleStatementLine) -> set[str]:
    [small] = line.body
    is_name = (
        isinstance(small, cst.Assign)
        and len(small.targets) == 1
        and isinstance(small.targets[0].target, cst.Name)
    )
    if not is_name:
        raise Refused(f"`{brief(small)}` uses what is read with the mask")
    return names.assigned(small)


def _assert_unused(
    site: Site, bound: set[str], steps: Sequence[cst.SimpleStatementLine]
) -> None:
    """The values in between must not be needed anywhere else."""
    inside = {node for step in steps for node in nodes(step)}
    last = steps[-1]
    for name in bound:
        others = (
            node
            for node in nodes(site.function.body)
            if isinstance(node, cst.Name) and node.value == name and node not in inside
        )
        if any(others) and names.is_needed_after(site, last, name):
            raise Refused(f"`{name}` is used again")


def _is_store(line: cst.SimpleStatementLine) -> bool:
    [small] = line.body
    if isinstance(small, cst.AugAssign):
        return isinstance(small.target, cst.Subscript)
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        return isinstance(small.targets[0].target, cst.Subscript)
    return False


def _store(line: cst.SimpleStatementLine) -> tuple[cst.Subscript, cst.BaseExpression]:
    """The target and the value; of `x[m] += y`, the value `x[m] + y`."""
    [small] = line.body
    if isinstance(small, cst.AugAssign):
        assert isinstance(small.target, cst.Subscript)
        operator = small.operator.__class__.__name__.removesuffix("Assign")
        binary = getattr(cst, operator, None)
        if binary is None or not issubclass(binary, cst.BaseBinaryOp):
            raise Refused(f"`{brief(small)}` is not arithmetic")
        right = small.value
        if isinstance(right, (cst.BinaryOperation, cst.IfExp, cst.Comparison)):
            right = right.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        value = cst.BinaryOperation(small.target, binary(), right)
        return small.target, value
    assert isinstance(small, cst.Assign)
    target = small.targets[0].target
    assert isinstance(target, cst.Subscript)
    return target, small.value


def _masked(node: cst.Subscript) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    """The tensor and the mask of `x[m]`."""
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        raise Refused(f"`{brief(node)}` is indexed by more than a mask")
    index = node.slice[0].slice.value
    plain = (cst.Integer, cst.SimpleString, cst.List, cst.Ellipsis)
    if isinstance(index, plain) or is_number(index):
        raise Refused(f"`{brief(node)}` is not indexed by a mask")
    return node.value, index


def _index(node: cst.Subscript) -> cst.CSTNode:
    return node.slice[0].slice if len(node.slice) == 1 else node


def _reads(value: cst.CSTNode) -> Iterator[cst.Subscript]:
    """The masked reads in a value, outermost only."""
    if isinstance(value, cst.Subscript):
        yield value
        return
    for child in value.children:
        yield from _reads(child)


def _substituted(
    site: Site,
    steps: Sequence[cst.SimpleStatementLine],
    value: cst.BaseExpression,
) -> cst.BaseExpression:
    """The value, in which the names of earlier statements are replaced."""
    known: dict[str, cst.BaseExpression] = {}
    for step in steps:
        [small] = step.body
        assert isinstance(small, cst.Assign)
        name = dotted(small.targets[0].target) or ""
        known[name] = _expanded(small.value, known)
    changed = {dotted(each.value) or "" for each in _reads(_expanded(value, known))}
    for each in _between(site, steps):
        if (names.changed_in_place([each]) | names.assigned(each)) & changed:
            raise NoPattern("a tensor changes between the read and the store")
    return _expanded(value, known)


def _between(
    site: Site, steps: Sequence[cst.SimpleStatementLine]
) -> list[cst.BaseStatement]:
    if not steps:
        return []
    found: list[cst.BaseStatement] = []
    for each in names.following(site, steps[0]):
        if each not in steps:
            if not isinstance(each, cst.SimpleStatementLine):
                break
            if _is_store(each) if len(each.body) == 1 else False:
                break
            found.append(each)
    return found


def _expanded(
    value: cst.BaseExpression, known: dict[str, cst.BaseExpression]
) -> cst.BaseExpression:
    changes: dict[cst.CSTNode, cst.BaseExpression] = {}
    for name, meaning in known.items():
        for each in names.uses_of(value, name):
            bare = isinstance(meaning, (cst.Name, cst.Subscript, cst.Call))
            parens = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
            new = meaning.deep_clone()
            changes[each] = new if bare else new.with_changes(**parens)
    return replaced_in(value, changes)


def _assert_elementwise(
    site: Site, value: cst.BaseExpression, reads: Sequence[cst.Subscript]
) -> None:
    if why := Values(site).effect(value):
        raise Refused(f"not every element may be computed: {why}")
    inside = {node for each in reads for node in nodes(each)}
    for node in nodes(value):
        if node in inside:
            continue
        if isinstance(node, cst.Subscript):
            raise Refused(f"`{brief(node)}` is indexed in another way")
        if isinstance(node, cst.BinaryOperation) and isinstance(
            node.operator, (cst.MatrixMultiply, cst.FloorDivide, cst.Modulo)
        ):
            raise Refused(f"`{brief(node)}` is not elementwise, or may raise")
        if isinstance(node, (cst.BaseComp, cst.IfExp, cst.BooleanOperation)):
            raise Refused(f"`{brief(node)}` is not elementwise")
        if isinstance(node, cst.Call) and called(node)[0] not in ELEMENTWISE:
            raise Refused(f"`{brief(node)}` is not known to be elementwise")


def _assert_broadcast(
    site: Site, value: cst.BaseExpression, reads: Sequence[cst.Subscript]
) -> None:
    """Other operands must fit the selected elements as well as all of them."""
    inside = {node for each in reads for node in nodes(each)}
    scalars = Scalars(site)
    modules = {"torch", "F", "math", "nn"}
    for name in names.reads(value) - modules:
        used = [each for each in names.uses_of(value, name) if each not in inside]
        if used and name != "self" and not scalars.is_scalar(used[0]):
            raise Refused(f"`{name}` may be as long as what the mask selects")


def _is_linear(value: cst.BaseExpression, reads: Sequence[cst.Subscript]) -> bool:
    """Whether a value has finite gradients for any input and saves nothing."""
    if value in reads:
        return True
    if isinstance(value, cst.UnaryOperation):
        return _is_linear(value.expression, reads)
    if isinstance(value, cst.BinaryOperation):
        operator, parts = value.operator, (value.left, value.right)
        if isinstance(operator, (cst.Add, cst.Subtract)):
            return all(is_number(p) or _is_linear(p, reads) for p in parts)
        if isinstance(operator, (cst.Multiply, cst.Divide)) and is_number(value.right):
            return _is_linear(value.left, reads)
        if isinstance(operator, cst.Multiply) and is_number(value.left):
            return _is_linear(value.right, reads)
    return isinstance(value, cst.Name)


def _has_the_dimensions(
    site: Site, mask: cst.BaseExpression, base: cst.BaseExpression
) -> bool:
    """Whether a mask is made by comparing the tensor itself."""
    values: list[cst.BaseExpression | None] = [mask]
    if isinstance(mask, cst.Name):
        if mask.value in names.parameters(site.function):
            return False
        values = names.values_of(site.function, mask.value)
    text = site.code(base)
    return bool(values) and all(
        each is not None and _compares(each, text, site) for each in values
    )


def _compares(value: cst.BaseExpression, text: str, site: Site) -> bool:
    if isinstance(value, cst.Comparison):
        others = [each.comparator for each in value.comparisons]
        return site.code(value.left) == text and all(is_number(each) for each in others)
    if isinstance(value, cst.UnaryOperation):
        return _compares(value.expression, text, site)
    if isinstance(value, cst.BinaryOperation):
        return _compares(value.left, text, site) and _compares(value.right, text, site)
    if isinstance(value, cst.Call) and called(value)[0] in ("isnan", "isinf"):
        if value.args:
            return site.code(value.args[0].value) == text
        method = value.func
        return isinstance(method, cst.Attribute) and site.code(method.value) == text
    return False


def _broadcast(mask: str, like: str, name: str) -> str:
    """The mask with as many dimensions as a tensor, in the order of its first ones."""
    return f"{name} = {mask}.view(*{mask}.shape, *[1] * ({like}.dim() - {mask}.dim()))"
