"""Messages of exceptions, as a template and the values to insert.

A graph cannot format the value of a tensor, so the template and the tensors are passed
on, and the text is made when the exception is raised.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from torchproof.fixing.rewrites.operators import REDUCTIONS, nodes
from torchproof.fixing.rewrites.site import NoPattern, Refused, Site
from torchproof.fixing.rewrites.values import Values

_TEXTS = (
    cst.BaseString,
    cst.Call,
    cst.BinaryOperation,
    cst.Name,
    cst.Attribute,
    cst.Subscript,
)


def message_arguments(
    site: Site, values: Values, message: cst.BaseExpression | None
) -> list[str]:
    """The arguments for `raise_if` after the exception: a template, then values."""
    if message is None:
        return []
    _assert_harmless(site, values, message)
    text = site.code(message)
    if "\n" in text and ('"""' in text or "'''" in text):
        raise NoPattern("the message has several lines")
    if not isinstance(message, _TEXTS):
        raise Refused(f"the message `{text}` may not be a text")
    if isinstance(message, cst.SimpleString):
        return [site.code(message)]
    if isinstance(message, cst.FormattedString | cst.ConcatenatedString):
        inserted: list[str] = []
        parts = [_template(site, part, inserted) for part in _parts(message)]
        text = site.code(message)
        if not inserted:
            return [text]
        for part, new in parts:
            text = text.replace(part, new, 1)
        return [text, *inserted]
    if isinstance(message, cst.Call) and _is_format(message):
        inserted = [_inserted(site, each.value) for each in message.args]
        return [site.code(message.func.value), *inserted]  # type: ignore[attr-defined]
    return [site.code(message)]


def _is_format(call: cst.Call) -> bool:
    """`"{} of {}".format(a, b)`."""
    called = call.func
    return (
        isinstance(called, cst.Attribute)
        and called.attr.value == "format"
        and isinstance(called.value, cst.SimpleString)
        and not any(each.keyword or each.star for each in call.args)
    )


def _parts(
    message: cst.BaseExpression,
) -> Iterator[cst.SimpleString | cst.FormattedString]:
    if isinstance(message, cst.ConcatenatedString):
        yield from _parts(message.left)
        yield from _parts(message.right)
    elif isinstance(message, cst.SimpleString | cst.FormattedString):
        yield message


def _template(
    site: Site, part: cst.SimpleString | cst.FormattedString, inserted: list[str]
) -> tuple[str, str]:
    """A part of a message in the source and as a template for `str.format`."""
    text = site.code(part)
    if isinstance(part, cst.SimpleString):
        quotes = len(part.prefix) + len(part.quote)
        inside = text[quotes : -len(part.quote)].replace("{", "{{").replace("}", "}}")
        return text, f"{text[:quotes]}{inside}{part.quote}"
    new = part.start.replace("f", "").replace("F", "")
    for each in part.parts:
        if isinstance(each, cst.FormattedStringText):
            new += each.value
        else:
            assert isinstance(each, cst.FormattedStringExpression)
            new += _placeholder(site, each)
            inserted.append(_inserted(site, each.expression))
    return text, new + part.end


def _placeholder(site: Site, node: cst.FormattedStringExpression) -> str:
    spec = "".join(
        each.value if isinstance(each, cst.FormattedStringText) else "{"
        for each in node.format_spec or ()
    )
    if "{" in spec:
        raise NoPattern("the message has a format that is computed")
    label = f"{site.code(node.expression)}=" if node.equal else ""
    conversion = node.conversion or ("r" if node.equal and not spec else "")
    conversion = f"!{conversion}" if conversion else ""
    return label + "{" + conversion + (f":{spec}" if spec else "") + "}"


def _inserted(site: Site, node: cst.BaseExpression) -> str:
    """A value without `.item()`: a tensor without dimensions is formatted the same."""
    called = node.func if isinstance(node, cst.Call) else None
    if not isinstance(called, cst.Attribute) or called.attr.value != "item":
        return site.code(node)
    receiver = called.value
    inner = receiver.func if isinstance(receiver, cst.Call) else None
    text = site.code(receiver)
    if isinstance(inner, cst.Attribute) and inner.attr.value in REDUCTIONS:
        return text if not receiver.args else f"{text}.reshape(())"  # type: ignore[attr-defined]
    return f"{text}.reshape(())"


def _assert_harmless(site: Site, values: Values, message: cst.BaseExpression) -> None:
    """The message is now computed in any case: it must have no effect and not fail."""
    if not values.is_pure(message):
        raise Refused(f"the message `{site.code(message)}` may have side effects")
    for each in nodes(message):
        if isinstance(each, cst.Subscript) and not _is_size(each):
            raise Refused(f"`{site.code(each)}` in the message may fail")
        if isinstance(each, cst.Call) and site.code(each.func).endswith(
            (".tolist", ".numpy", ".nonzero", ".unique", ".cpu")
        ):
            raise Refused(f"`{site.code(each)}` in the message reads a tensor")


def _is_size(node: cst.Subscript) -> bool:
    """`x.shape[0]`."""
    return isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"
