"""Settings of the compiler as lines of the program that calls torch.compile."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from torchproof.fixing.rewrites.operators import dotted, nodes
from torchproof.fixing.rewrites.site import Refused, Site
from torchproof.records import Setting


def with_setting(site: Site, setting: Setting) -> str:
    """The text with a line below the imports, or an argument of torch.compile."""
    if setting.name.startswith("compile."):
        return _with_argument(site, setting)
    imports, lines = ["torch"], setting.lines
    if setting.module and "." not in setting.module:  # may be imported already
        imports, lines = [*imports, setting.module], lines[1:]
    statements = [cst.parse_statement(f"{line}\n") for line in lines]
    return site.replaced({}, imports, below_imports=statements)


def _with_argument(site: Site, setting: Setting) -> str:
    """The call of torch.compile at the line, or the decorator, with the argument."""
    form = cst.ensure_type(cst.parse_expression(f"f({setting.code})"), cst.Call)
    [new] = form.args
    found = list(_compiles(site))
    if len(found) != 1:
        raise Refused(f"line {site.line} has not exactly one call of torch.compile")
    [node] = found
    if not isinstance(node, cst.Call):
        return site.replaced({node: cst.Call(node, [new])})
    if any(each.star for each in node.args):
        raise Refused("the arguments of torch.compile are unpacked")
    assert new.keyword is not None
    for each in node.args:
        if each.keyword is not None and each.keyword.value == new.keyword.value:
            return site.replaced({each.value: new.value})
    return site.replaced({node: node.with_changes(args=_extended(node, new))})


def _compiles(site: Site) -> Iterator[cst.BaseExpression]:
    """`torch.compile(f)`, `model.compile()` and a bare `@torch.compile` at the line."""
    for node in nodes(site.module):
        name = node.func if isinstance(node, cst.Call) else None
        name = node.decorator if isinstance(node, cst.Decorator) else name
        if name is None or (dotted(name) or "").split(".")[-1] != "compile":
            continue
        where = site.range_of(node)
        if where.start.line <= site.line <= where.end.line:
            yield node.decorator if isinstance(node, cst.Decorator) else node  # type: ignore[misc]


def _extended(call: cst.Call, new: cst.Arg) -> list[cst.Arg]:
    """The arguments with one more, each on a line of its own if they were.

    There, it comes before the last keyword: a comment stays where it was.
    """
    if not call.args:
        return [new]
    *others, last = call.args
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        line = call.whitespace_before_args.with_changes(
            first_line=cst.TrailingWhitespace(), empty_lines=[]
        )
        between = cst.Comma(whitespace_after=line)
        if last.keyword is not None:
            return [*others, new.with_changes(comma=between), last]
    after = last.whitespace_after_arg
    ended = new.with_changes(comma=last.comma, whitespace_after_arg=after)
    nothing = cst.SimpleWhitespace("")
    return [
        *others,
        last.with_changes(comma=between, whitespace_after_arg=nothing),
        ended,
    ]
