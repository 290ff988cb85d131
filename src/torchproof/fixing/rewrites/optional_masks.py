"""Masks that become None where they mask nothing: `if not mask.any(): mask = None`."""

from __future__ import annotations

import libcst as cst

from torchproof.fixing.rewrites.operators import nodes
from torchproof.fixing.rewrites.site import Changes, Draft, NoPattern, Refused, Site
from torchproof.fixing.rewrites.values import Values

_TITLE = "keep the mask where it masks nothing"


def keep(site: Site) -> Draft:
    """Keeps a mask without a true element, while compiling, in place of None.

    Code that uses a mask only to mask computes the same with both; code that asks
    whether there is a mask may not. So the tier is unsafe.
    """
    values = Values(site)
    statement = site.statement
    if isinstance(statement, cst.If):
        changes = _in_branch(statement, values)
    else:
        changes = _in_expression(site, values)
    return Draft(_TITLE, site.replaced(changes, ["torch"]), "unsafe")


def _in_branch(branch: cst.If, values: Values) -> Changes:
    """`if not mask.any(): mask = None` asks first whether it is compiled."""
    name = _set_to_none(branch)
    if name is None or branch.orelse is not None:
        raise NoPattern("the branch does more than set a mask to None")
    tests = list(_operands(branch.test))
    if not any(_masks_nothing(each, name, values) for each in tests):
        raise Refused(f"the condition is not that nothing in `{name}` is true")
    return {branch.test: _not_compiling(branch.test)}


def _in_expression(site: Site, values: Values) -> Changes:
    """`mask if mask.any() else None` becomes the mask, if it is compiled."""
    for node in nodes(site.statement):
        if not isinstance(node, cst.IfExp) or not _is_none(node.orelse):
            continue
        if isinstance(node.body, cst.Name) and _is_any(
            node.test, node.body.value, values
        ):
            test = cst.BooleanOperation(
                left=cst.parse_expression("torch.compiler.is_compiling()"),
                operator=cst.Or(),
                right=node.test,
            )
            return {node: node.with_changes(test=test)}
    raise NoPattern("no mask becomes None here")


def _set_to_none(branch: cst.If) -> str | None:
    """The name in a block that is `name = None`."""
    match branch.body:
        case cst.IndentedBlock(
            body=[
                cst.SimpleStatementLine(
                    body=[
                        cst.Assign(
                            targets=[cst.AssignTarget(target=cst.Name(value=name))],
                            value=value,
                        )
                    ]
                )
            ]
        ) if _is_none(value):
            return name
    return None


def _operands(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The operands of `a and b`."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_operands(test.left), *_operands(test.right)]
    return [test]


def _masks_nothing(test: cst.BaseExpression, name: str, values: Values) -> bool:
    return (
        isinstance(test, cst.UnaryOperation)
        and isinstance(test.operator, cst.Not)
        and _is_any(test.expression, name, values)
    )


def _is_any(node: cst.BaseExpression, name: str, values: Values) -> bool:
    """Whether an expression is `name.any()` or `torch.any(name)`."""
    if not isinstance(node, cst.Call):
        return False
    if values.dotted(node.func) == "torch.any" and len(node.args) == 1:
        value = node.args[0].value
        return isinstance(value, cst.Name) and value.value == name
    return values.dotted(node.func) == f"{name}.any" and not node.args


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _not_compiling(test: cst.BaseExpression) -> cst.BaseExpression:
    return cst.BooleanOperation(
        left=cst.parse_expression("not torch.compiler.is_compiling()"),
        operator=cst.And(),
        right=test,
    )
