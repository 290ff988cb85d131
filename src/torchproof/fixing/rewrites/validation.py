"""Validation: statements that raise an exception if a tensor has a certain value."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import libcst as cst

from torchproof.fixing.rewrites.conditions import (
    Both,
    Condition,
    Either,
    Python,
    Reader,
)
from torchproof.fixing.rewrites.formatting import WIDTH, laid_out, parenthesised
from torchproof.fixing.rewrites.messages import message_arguments
from torchproof.fixing.rewrites.names import (
    assigned_name,
    body,
    following,
    only,
    uses_of,
)
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

_INDENT = "    "
_NO_CHECK = "there is no check here that only raises an exception"
_TITLE = "check the tensor in the graph, with raise_if"
# What torch's own checks say without a message.
_NO_MESSAGE = (
    "Expected cond to be True, but got False. (Could this error message be improved?"
    " If so, please report an enhancement request to PyTorch.)"
)


def raise_if(site: Site) -> Draft:
    """`if (x < 0).any(): raise E(m)` becomes `raise_if((x < 0).any(), E, m)`."""
    if (call := _torch_check(site)) is not None:
        return _without_reading(site, call)
    check, held = _check_at(site)
    values = Values(site)
    reader = Reader(site, values, [held.name] if held else [])
    condition = reader.condition(check.test, negated=not check.raises_if)
    writer = _Writer(check.exception, message_arguments(site, values, check.message))
    text = writer.lines(condition, WIDTH - len(site.indent(check.statement)))
    new = [*statements(text), *check.rest]
    changes: Changes = {check.statement: new}
    if check.is_elif:
        changes = {check.statement: cst.Else(cst.IndentedBlock(new))}
    if held:
        changes[held.value] = cst.parse_expression(reader.value(held.value))
    imports = ["torchproof.raise_if", *(["torch"] if "torch." in text else [])]
    return Draft(_TITLE, site.replaced(changes, imports))


# -- checks of torch -------------------------------------------------------------------


def _torch_check(site: Site) -> cst.Call | None:
    """The call of a check of torch that reads a whole tensor, as a statement."""
    line = only(site.statement)
    call = line.value if isinstance(line, cst.Expr) else None
    if not isinstance(call, cst.Call):
        return None
    checks = ("torch._check_tensor_all", "torch._check_tensor_all_with")
    return call if Values(site).dotted(call.func) in checks else None


def _without_reading(site: Site, call: cst.Call) -> Draft:
    """`torch._check_tensor_all(x)` becomes a `raise_if` of the same exception."""
    arguments = [each.value for each in call.args]
    if any(each.keyword or each.star for each in call.args):
        raise Refused(f"the arguments of `{site.code(call.func)}` are not in order")
    exception = "RuntimeError"
    if Values(site).dotted(call.func).endswith("_with"):
        exception, arguments = site.code(arguments[0]), arguments[1:]
    if not 1 <= len(arguments) <= 2:
        raise Refused(f"`{site.code(call.func)}` has no condition")
    condition, *messages = arguments
    message = [f'"{_NO_MESSAGE}"']
    if messages and site.code(messages[0]) != "None":
        [text] = messages
        if not isinstance(text, cst.Lambda) or text.params.params:
            raise NoPattern("the message is not written in the check")
        message = message_arguments(site, Values(site), text.body)
    # The method refuses a tensor that is not bool, as the check does.
    wrong = f"~{parenthesised(site.code(condition))}._is_all_true()"
    width = WIDTH - len(site.indent(site.statement))
    new = statements(laid_out("raise_if(", [wrong, exception, *message], width) + "\n")
    changes: Changes = {site.statement: new}
    return Draft(_TITLE, site.replaced(changes, ["torchproof.raise_if"]))


# -- the check in the source -----------------------------------------------------------


@dataclass(frozen=True)
class _Check:
    """A statement that raises an exception if a condition has a certain truth."""

    statement: Statement
    test: cst.BaseExpression
    exception: str
    message: cst.BaseExpression | None
    raises_if: bool = True  # the truth of the test that raises
    rest: tuple[Statement, ...] = ()  # what runs if it does not raise
    is_elif: bool = False


@dataclass(frozen=True)
class _Held:
    """The assignment of a number that only a check reads."""

    statement: Statement
    name: str
    value: cst.BaseExpression


def _check_at(site: Site) -> tuple[_Check, _Held | None]:
    """The check at a site, or right after it if the site computes its condition."""
    check = _check(site, site.statement)
    if check is not None:
        return check, None
    name, value = assigned_name(site.statement)
    after = following(site, site.statement) if name else []
    check = _check(site, after[0]) if after else None
    if check is None or value is None:
        raise NoPattern(_NO_CHECK)
    total, inside = (
        len(uses_of(site.function, name)),
        len(uses_of(check.statement, name)),
    )
    if total != inside + 1 or any(uses_of(each, name) for each in check.rest):
        raise Refused(f"`{name}` is used outside the check too")
    return check, _Held(site.statement, name, value)


def _check(site: Site, statement: Statement) -> _Check | None:
    match only(statement):
        case cst.Assert(test, message):
            return _Check(statement, test, "AssertionError", message, False)
    if not isinstance(statement, cst.If):
        return None
    above = site.parent(statement)
    is_elif = isinstance(above, cst.If) and above.orelse is statement
    if (raised := _raised(statement.body)) is not None:
        rest: tuple[Statement, ...] = ()
        if isinstance(statement.orelse, cst.Else):
            rest = tuple(body(statement.orelse))
        elif statement.orelse is not None:
            rest = (statement.orelse,)
        return _Check(statement, statement.test, *raised, rest=rest, is_elif=is_elif)
    otherwise = statement.orelse
    raised = _raised(otherwise.body) if isinstance(otherwise, cst.Else) else None
    if raised is None:
        return None
    rest = tuple(body(statement))
    return _Check(statement, statement.test, *raised, False, rest, is_elif)


def _raised(suite: cst.BaseSuite) -> tuple[str, cst.BaseExpression | None] | None:
    """The exception and the message of a block that does nothing but raise."""
    block = body(suite)
    lines = [n for n in block if isinstance(n, cst.SimpleStatementLine)]
    simple = [each for line in lines for each in line.body]
    if len(lines) != len(block) or not simple:
        return None
    *before, last = simple
    if not isinstance(last, cst.Raise) or last.cause or last.exc is None:
        return None
    raised = last.exc
    if not isinstance(raised, cst.Call):
        return (cst.Module(()).code_for_node(raised), None) if not before else None
    if len(raised.args) > 1 or any(a.keyword or a.star for a in raised.args):
        return None
    message = raised.args[0].value if raised.args else None
    if before:  # msg = "..."; raise E(msg)
        name, value = assigned_name(lines[0])
        named = isinstance(message, cst.Name) and message.value == name
        if len(before) > 1 or not named:
            return None
        message = value
    return cst.Module(()).code_for_node(raised.func), message


# -- the new text ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Writer:
    exception: str
    message: list[str]

    def lines(self, condition: Condition, width: int) -> str:
        """Statements that raise the exception if a condition holds, as text."""
        if isinstance(condition, Python):
            message = self.message[:1]
            if len(self.message) > 1:
                message = [f"{message[0]}.format({', '.join(self.message[1:])})"]
            raised = f"raise {laid_out(f'{self.exception}(', message, width - 10)}\n"
            return f"if {condition.text}:\n{textwrap.indent(raised, _INDENT)}"
        if isinstance(condition, Either):
            return "".join(self.lines(each, width) for each in condition.operands)
        if not isinstance(condition, Both):
            arguments = [condition.text, self.exception, *self.message]
            return laid_out("raise_if(", arguments, width) + "\n"
        first = [each for each in condition.operands if isinstance(each, Python)]
        rest = [each for each in condition.operands if not isinstance(each, Python)]
        if len(rest) > 1:
            raise NoPattern("the condition mixes Python values and tensors too deeply")
        test = " and ".join(_grouped(each.text) for each in first)
        inner = self.lines(rest[0], width - len(_INDENT))
        return f"if {test}:\n{textwrap.indent(inner, _INDENT)}"


def _grouped(text: str) -> str:
    return f"({text})" if " or " in text or " if " in text else text
