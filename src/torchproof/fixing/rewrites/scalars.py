"""Which values of a function have no dimensions, and which are plain Python."""

from __future__ import annotations

import ast
import struct

import libcst as cst

from torchproof.checking import Kind, words
from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.formatting import parenthesised
from torchproof.fixing.rewrites.operators import (
    REDUCTIONS,
    brief,
    called,
    dotted,
    is_number,
    nodes,
)
from torchproof.fixing.rewrites.site import Site
from torchproof.fixing.rewrites.values import Values

_BOOLEAN = words(
    "all any isinf isnan isfinite isneginf isposinf isclose logical_and logical_or"
    " logical_not logical_xor eq ne lt le gt ge isin"
)
_CONSTANTS = ("None", "True", "False")
_PLAIN = (Kind.NONE, Kind.NUMBER, Kind.SIZES)
_SCALAR_ANNOTATIONS = frozenset(("bool", "int", "float", "str"))


class Scalars:
    """What the function at a site shows about its values, by their names."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._function = site.function
        self._values = Values(site)
        self._scalars: dict[str, bool] = {}

    def is_plain(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is certainly not a tensor."""
        kind = self._values.kind(node)
        if kind is not Kind.UNKNOWN:
            return kind.is_plain or kind in _PLAIN
        if isinstance(node, (cst.BaseNumber, cst.BaseString, cst.BaseComp, cst.Lambda)):
            return True
        if isinstance(node, cst.Name | cst.Attribute):
            return _is_setting(node) or self._is_plain_attribute(dotted(node) or "")
        if isinstance(node, cst.Subscript):
            return self.is_plain(node.value)
        if isinstance(node, cst.UnaryOperation):
            return self.is_plain(node.expression)
        if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
            return self.is_plain(node.left) and self.is_plain(node.right)
        if isinstance(node, cst.Comparison):
            sides = [node.left, *(each.comparator for each in node.comparisons)]
            return all(self.is_plain(side) for side in sides)
        name = self._values.dotted(node.func) if isinstance(node, cst.Call) else ""
        return name.startswith("math.") or name in ("int", "float", "len")

    def is_linear(self, node: cst.CSTNode) -> bool:
        """Whether a node multiplies or divides by a plain number."""
        if not isinstance(node, cst.BinaryOperation):
            return False
        if not isinstance(node.operator, (cst.Multiply, cst.Divide)):
            return False
        factor = isinstance(node.operator, cst.Multiply) and self.is_plain(node.left)
        return factor or self.is_plain(node.right)

    def _is_plain_attribute(self, name: str) -> bool:
        """Whether the class sets an attribute from Python values or settings only."""
        owner = self._site.around(self._function, cst.ClassDef)
        if owner is None or name.count(".") != 1:
            return False
        attribute = name.partition(".")[2]
        values: list[cst.BaseExpression | None] = []
        for node in nodes(owner):
            if isinstance(node, cst.FunctionDef):
                values += names.values_of(node, name)
            if isinstance(node, cst.AnnAssign) and dotted(node.target) == attribute:
                return brief(node.annotation.annotation) in _SCALAR_ANNOTATIONS
            if isinstance(node, cst.Call) and _registers(node, attribute):
                return False
        plain = (cst.BaseNumber, cst.BaseString, cst.Attribute, cst.Name)
        return bool(values) and all(isinstance(value, plain) for value in values)

    def is_scalar(self, node: cst.BaseExpression) -> bool:
        """Whether a tensor certainly has no dimensions."""
        if is_number(node) or self.is_plain(node):
            return True
        if isinstance(node, cst.Name):
            return self._is_scalar_name(node.value)
        if isinstance(node, cst.UnaryOperation):
            return self.is_scalar(node.expression)
        if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
            return self.is_scalar(node.left) and self.is_scalar(node.right)
        if isinstance(node, cst.Comparison):
            sides = [node.left, *(each.comparator for each in node.comparisons)]
            return all(self.is_scalar(side) for side in sides)
        return isinstance(node, cst.Call) and self._is_scalar_call(node)

    def _is_scalar_call(self, call: cst.Call) -> bool:
        name, is_function = called(call)
        if name in ("item", "bool", "float", "int", "allclose"):
            return True
        if is_function:
            one = len(call.args) == 1 and call.args[0].keyword is None
            if name in REDUCTIONS:
                return one
            if name in ("logical_and", "logical_or", "logical_not"):
                return all(self.is_scalar(each.value) for each in call.args)
            return name in _BOOLEAN and one and self.is_scalar(call.args[0].value)
        assert isinstance(call.func, cst.Attribute)
        if name in REDUCTIONS:
            return not call.args
        same = name in ("abs", "float", "double", "long", "to", "detach", "sqrt")
        return same and self.is_scalar(call.func.value)

    def _is_scalar_name(self, name: str) -> bool:
        if name not in self._scalars:
            self._scalars[name] = False
            values = names.values_of(self._function, name)
            known = name not in names.parameters(self._function) and bool(values)
            self._scalars[name] = known and all(
                v is not None and self.is_scalar(v) for v in values
            )
        return self._scalars[name]


def _registers(call: cst.Call, attribute: str) -> bool:
    """Whether a call is `self.register_buffer("attribute", ...)`."""
    first = call.args[0].value if call.args else None
    if called(call)[0] not in ("register_buffer", "register_parameter"):
        return False
    is_text = isinstance(first, cst.SimpleString)
    return is_text and ast.literal_eval(first.value) == attribute  # type: ignore[union-attr]


def _is_setting(node: cst.Name | cst.Attribute) -> bool:
    parts = (dotted(node) or "").split(".")
    return "config" in parts[:-1] or parts[0] in ("cfg", "args", "math", *_CONSTANTS)


def is_representable(value: float) -> bool:
    """Whether float32 represents a number exactly."""
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def boolean(text: str) -> str:
    """A tensor that is true where Python takes a value for true."""
    node = cst.parse_expression(text)
    if isinstance(node, cst.Comparison):
        return text
    if isinstance(node, cst.Call) and called(node)[0] in _BOOLEAN:
        return text
    return f"{parenthesised(text)} != 0"
