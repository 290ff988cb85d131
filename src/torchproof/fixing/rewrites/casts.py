"""Tensors of a module that are converted in each call, and are so already."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from torchproof.fixing.rewrites.names import only
from torchproof.fixing.rewrites.operators import brief, dotted
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

_DTYPES = {
    "float": "torch.float32",
    "half": "torch.float16",
    "double": "torch.float64",
    "bfloat16": "torch.bfloat16",
    "long": "torch.int64",
    "int": "torch.int32",
    "bool": "torch.bool",
}


def where_needed(site: Site) -> Draft:
    """Assigns `self.table = self.table.to(x.dtype)` only where the dtype differs.

    Otherwise `to` returns the tensor itself, and the assignment changes nothing.
    """
    line, name, call = _conversion(site)
    wanted = list(_conversions(site, call, Values(site)))
    if not wanted:
        raise Refused(f"`{brief(call)}` does not say a device or a dtype")
    test = " or ".join(f"{name}.{what} != {value}" for what, value in wanted)
    assignment = site.code(line.with_changes(leading_lines=[]))
    text = f"if {test}:\n    {assignment}\n"
    changes: Changes = {site.statement: statements(text)}
    imports = ["torch"] if "torch." in test else []
    title = f"convert `{name}` only where it is not converted yet"
    return Draft(title, site.replaced(changes, imports))


def _conversion(site: Site) -> tuple[Statement, str, cst.Call]:
    """The line `self.table = self.table.to(...)`, the name in it and the call."""
    match only(site.statement):
        case cst.Assign(
            [cst.AssignTarget(target)], cst.Call(cst.Attribute(converted)) as call
        ):
            name = dotted(target) or ""
            if name.startswith("self.") and dotted(converted) == name:
                return site.statement, name, call
    raise NoPattern("no attribute is converted here")


def _conversions(
    site: Site, call: cst.Call, values: Values
) -> Iterator[tuple[str, str]]:
    """What `to` makes certain: `device` and `dtype`, with their values."""
    method = call.func.attr.value  # type: ignore[attr-defined]
    if method in _DTYPES and not call.args:
        yield "dtype", _DTYPES[method]
    if method != "to":
        return
    for argument in call.args:
        value, keyword = argument.value, argument.keyword
        text = site.code(value)
        if not values.is_pure(value):
            raise Refused(f"`{brief(value)}` would be evaluated twice")
        if keyword is not None and keyword.value in ("device", "dtype"):
            yield keyword.value, text
        elif keyword is not None or argument.star:
            raise Refused(f"`{brief(call)}` asks for more than a device or a dtype")
        elif values.is_tensor(value):
            yield "device", f"{text}.device"
            yield "dtype", f"{text}.dtype"
        elif _is_dtype(values.dotted(value)):
            yield "dtype", text
        elif text == "device" or text.endswith(".device"):
            yield "device", text
        else:
            raise Refused(f"`{text}` may be a device, a dtype or a tensor")


def _is_dtype(name: str) -> bool:
    return name == "dtype" or name.endswith(".dtype") or name in _DTYPES.values()
