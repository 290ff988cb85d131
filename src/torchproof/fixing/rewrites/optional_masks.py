"""Masks that become None where they mask nothing: `if not mask.any(): mask = None`."""

from __future__ import annotations

import libcst as cst

from torchproof.fixing.rewrites.names import assigned_name, body
from torchproof.fixing.rewrites.operators import brief, nodes
from torchproof.fixing.rewrites.site import Changes, Draft, NoPattern, Refused, Site
from torchproof.fixing.rewrites.values import Values

_TITLE = "keep the mask where it masks nothing"


def keep(site: Site) -> Draft:
    """Keeps a mask without a true element, while compiling, in place of None.

    Code that uses a mask only to mask computes the same with both; code that asks
    whether there is a mask may not. So the tier is unsafe.
    """
    values, statement = Values(site), site.statement
    if isinstance(statement, cst.If):
        _assert_without_mask(statement, values)
        test, compiling = statement.test, "not torch.compiler.is_compiling() and"
    else:
        test, compiling = (
            _test_of_mask(site, values),
            "torch.compiler.is_compiling() or",
        )
    new = cst.parse_expression(f"({compiling} {site.code(test)})")
    changes: Changes = {test: new.with_changes(lpar=test.lpar, rpar=test.rpar)}
    return Draft(_TITLE, site.replaced(changes, ["torch"]), "unsafe")


def _assert_without_mask(branch: cst.If, values: Values) -> None:
    """Refuses all but `if not mask.any(): mask = None`, also with `and`."""
    block = body(branch)
    name, value = assigned_name(block[0])
    if len(block) != 1 or branch.orelse is not None or not _is_none(value):
        raise NoPattern("the branch does more than set a mask to None")
    for each in _operands(branch.test):
        match each:
            case cst.UnaryOperation(cst.Not(), asked) if _is_any(asked, name, values):
                return
    raise Refused(f"the condition is not that nothing in `{name}` is true")


def _test_of_mask(site: Site, values: Values) -> cst.BaseExpression:
    """The condition of `mask if mask.any() else None`."""
    for node in nodes(site.statement):
        match node:
            case cst.IfExp(test=test, body=cst.Name(name), orelse=orelse):
                if _is_none(orelse) and _is_any(test, name, values):
                    return test
    raise NoPattern("no mask becomes None here")


def _operands(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The operands of `a and b`."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_operands(test.left), *_operands(test.right)]
    return [test]


def _is_any(node: cst.BaseExpression, name: str, values: Values) -> bool:
    """Whether an expression is `name.any()` or `torch.any(name)`."""
    if not isinstance(node, cst.Call):
        return False
    arguments = [brief(each.value) for each in node.args]
    called = values.dotted(node.func)
    return (called, arguments) in ((f"{name}.any", []), ("torch.any", [name]))


def _is_none(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"
