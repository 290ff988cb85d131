"""Conditions on tensors: which parts Python decides, and which become one tensor.

`if a and b` asks each operand for its truth. `Condition` keeps the operands that Python
knows apart from those that are tensors, so that the tensors can be combined with
torch.logical_and and torch.logical_or.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from torchproof.checking import Kind
from torchproof.fixing.rewrites.formatting import parenthesised
from torchproof.fixing.rewrites.names import assigned_name
from torchproof.fixing.rewrites.operators import BUILTINS, nodes
from torchproof.fixing.rewrites.site import NoPattern, Refused, Site
from torchproof.fixing.rewrites.values import (
    TENSOR_METHODS,
    Values,
)

_CASTS = ("bool", "int", "float")
_ASKS = {"math.isnan": "isnan", "math.isinf": "isinf", "math.isfinite": "isfinite"}
# Values that may be True or False in one call and a tensor in another.
_MIXED = (cst.BooleanOperation, cst.IfExp)
_ORDERS = (
    cst.LessThan,
    cst.LessThanEqual,
    cst.GreaterThan,
    cst.GreaterThanEqual,
    cst.Equal,
    cst.NotEqual,
)


@dataclass(frozen=True)
class Python:
    """An operand that tracing knows."""

    text: str


@dataclass(frozen=True)
class Tensor:
    """An operand with one element, whose truth is known when the graph runs."""

    text: str


@dataclass(frozen=True)
class Both:
    """Several operands of `and`."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True)
class Either:
    """Several operands of `or`."""

    operands: tuple[Condition, ...]


Condition = Python | Tensor | Both | Either


class Reader:
    """Turns the test of a statement into a `Condition`."""

    def __init__(self, site: Site, values: Values, held: Sequence[str] = ()) -> None:
        self._site, self._values = site, values
        self._held = held  # names whose number becomes a tensor by the same edit

    def condition(
        self, test: cst.BaseExpression, *, negated: bool = False
    ) -> Condition:
        """Raises `Refused` if no part of the test is a tensor, or one is unclear."""
        leaves = [e for e in _leaves(test) if not self._is_python(e)]
        underlined = self._site.expression
        tensors = [e for e in leaves if self.looks_tensor(e) or e is underlined]
        tensors = tensors or leaves[:1]
        if not tensors:
            raise NoPattern("no part of the condition is a tensor")
        return self._read(test, tensors, negated)

    def _read(
        self, node: cst.BaseExpression, tensors: list[cst.BaseExpression], negated: bool
    ) -> Condition:
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            return self._read(node.expression, tensors, not negated)
        if isinstance(node, cst.BooleanOperation):
            parts = [self._read(e, tensors, negated) for e in (node.left, node.right)]
            if not isinstance(parts[0], Python):
                self._assert_pure(node.right)
            both = isinstance(node.operator, cst.And) is not negated
            return _joined(parts, both=both)
        if node in tensors:
            self._assert_always_tensor(node)
            return self._tensor(node, negated)
        text = self._site.code(node)
        return Python(_negated(node, text) if negated else text)

    def _assert_always_tensor(self, node: cst.BaseExpression) -> None:
        """`skip = self.training and draw < rate` is sometimes a tensor."""
        if (call := self._unknown_call(node)) is not None:
            raise Refused(f"`{self._site.code(call)}` may be no tensor")
        if not isinstance(node, cst.Name) or node.value in self._held:
            return
        for each in nodes(self._site.function):
            name, value = assigned_name(each)
            if name == node.value and isinstance(value, _MIXED):
                raise Refused(f"`{name}` is not always a tensor")

    def _unknown_call(self, node: cst.BaseExpression) -> cst.Call | None:
        """An operand that a function of the program gives, maybe as a number."""
        if isinstance(node, cst.Comparison):
            operands = [node.left, *(each.comparator for each in node.comparisons)]
        elif isinstance(node, cst.BinaryOperation):
            operands = [node.left, node.right]
        elif isinstance(node, cst.UnaryOperation):
            operands = [node.expression]
        elif not isinstance(node, cst.Call) or self._values.is_tensor(node):
            return None
        else:
            name = self._values.dotted(node.func)
            method = isinstance(node.func, cst.Attribute) and node.func.attr.value
            is_known = name in BUILTINS or name.startswith(("torch.", "math."))
            return None if is_known or method in TENSOR_METHODS else node
        return next(filter(None, map(self._unknown_call, operands)), None)

    def _assert_pure(self, node: cst.BaseExpression) -> None:
        """An operand after a tensor is computed in any case."""
        if not self._values.is_pure(node):
            raise Refused(f"`{self._site.code(node)}` may have side effects")

    def _is_python(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Comparison):
            sides = [node.left, *(c.comparator for c in node.comparisons)]
            ordered = all(isinstance(c.operator, _ORDERS) for c in node.comparisons)
            return not ordered or all(map(self._is_python, sides))
        kind = self._values.kind(node)
        return kind.is_plain or kind is Kind.NONE

    def looks_tensor(self, node: cst.BaseExpression) -> bool:
        """Whether a value is a tensor, or a number read out of one, by its source."""
        kind = self._values.kind(node)
        if kind.is_tensor or kind is Kind.NUMBER:
            return True
        if isinstance(node, cst.Name):
            return node.value in self._held
        if isinstance(node, cst.Comparison):
            operands = [node.left, *(c.comparator for c in node.comparisons)]
            return any(self.looks_tensor(each) for each in operands)
        if isinstance(node, cst.BinaryOperation):
            return any(self.looks_tensor(each) for each in (node.left, node.right))
        if not isinstance(node, cst.Call):
            return False
        name = self._values.dotted(node.func)
        if name in _CASTS or name in _ASKS or name == "abs":
            return any(self.looks_tensor(each.value) for each in node.args)
        if name.startswith("torch."):
            return not kind.is_plain
        method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
        return method in TENSOR_METHODS and method not in ("numel", "size", "dim")

    # -- the value of an operand as a tensor -------------------------------------------

    def _tensor(self, node: cst.BaseExpression, negated: bool) -> Condition:
        if isinstance(node, cst.Call):
            name = self._values.dotted(node.func)
            if name == "torch.equal":
                return self._equal(node, negated)
            if name in _CASTS and len(node.args) == 1:
                return self._tensor(node.args[0].value, negated)
        if isinstance(node, cst.Comparison):
            parts = [Tensor(text) for text in self._comparisons(node)]
            whole = _joined(parts, both=True)
            assert isinstance(whole, Tensor)
            return _not(whole) if negated else whole
        text = self.value(node)
        return _not(Tensor(text)) if negated else Tensor(text)

    def _equal(self, call: cst.Call, negated: bool) -> Condition:
        """torch.equal, which also compares the shapes, and answers in Python."""
        if len(call.args) != 2 or any(each.keyword for each in call.args):
            raise NoPattern("torch.equal has other arguments than two tensors")
        if not all(self._values.is_pure(each.value) for each in call.args):
            raise NoPattern("an argument of torch.equal may have side effects")
        left, right = (parenthesised(self._site.code(each.value)) for each in call.args)
        if negated:
            shapes = Python(f"{left}.shape != {right}.shape")
            return Either((shapes, Tensor(f"({left} != {right}).any()")))
        shapes = Python(f"{left}.shape == {right}.shape")
        return Both((shapes, Tensor(f"({left} == {right}).all()")))

    def _comparisons(self, node: cst.Comparison) -> list[str]:
        """`a < b < c` as `a < b` and `b < c`."""
        operands = [node.left, *(each.comparator for each in node.comparisons)]
        if len(operands) > 2 and not all(map(self._values.is_pure, operands[1:-1])):
            raise NoPattern("an operand of a chained comparison may have side effects")
        texts = []
        for i, each in enumerate(node.comparisons):
            left, right = operands[i], operands[i + 1]
            operator = self._site.module.code_for_node(each.operator)
            texts.append(
                f"{self._compared(left, right)}{operator}{self._compared(right, left)}"
            )
        return texts

    def _compared(self, node: cst.BaseExpression, other: cst.BaseExpression) -> str:
        """An operand of a comparison.

        Python compares a number exactly; a tensor of float32 rounds the other operand
        to float32 first. Numbers that every dtype holds are not affected.
        """
        if not self._holds_number(node):
            return self._site.code(node)
        exact = _is_exact(other) or self._values.is_tensor(other)
        return self.value(node, suffix="" if exact else ".double()")

    def _holds_number(self, node: cst.BaseExpression) -> bool:
        """Whether an expression reads a number out of a tensor."""
        return any(
            _item(each) is not None
            or (isinstance(each, cst.Name) and self._names_number(each))
            or (
                isinstance(each, cst.Call)
                and self._values.dotted(each.func) in ("int", "float")
                and self.looks_tensor(each)
            )
            for each in nodes(node)
        )

    def _names_number(self, node: cst.Name) -> bool:
        return node.value in self._held or self._values.kind(node) is Kind.NUMBER

    def value(self, node: cst.BaseExpression, suffix: str = "") -> str:
        """An expression without `.item()`, `float()` and `int()`, as a tensor."""
        if (tensor := _item(node)) is not None:
            return parenthesised(self._site.code(tensor)) + suffix
        if isinstance(node, cst.Name) and node.value in self._held:
            return node.value + suffix
        if isinstance(node, cst.Call):
            name = self._values.dotted(node.func)
            if name in ("float", "bool") and len(node.args) == 1:
                return self.value(node.args[0].value, suffix)
            if name == "torch.allclose":
                arguments = ", ".join(
                    self._site.code(each).rstrip(", ") for each in node.args
                )
                return f"torch.isclose({arguments}).all()"
            if name in _ASKS:
                return f"torch.{_ASKS[name]}({self.value(node.args[0].value)})"
            if name in ("int", "abs", "round", "max", "min") and suffix:
                raise Refused(f"`{self._site.code(node)}` computes with the number")
        if self._holds_number(node):
            raise Refused(f"`{self._site.code(node)}` computes with the number")
        text = self._site.code(node)
        return f"{parenthesised(text)}{suffix}" if suffix else text


def _leaves(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The operands of `and`, `or` and `not`."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _leaves(test.expression)
    if isinstance(test, cst.BooleanOperation):
        return [*_leaves(test.left), *_leaves(test.right)]
    return [test]


def _item(node: cst.CSTNode) -> cst.BaseExpression | None:
    """The `x` of `x.item()`."""
    if not isinstance(node, cst.Call) or node.args:
        return None
    called = node.func
    if isinstance(called, cst.Attribute) and called.attr.value == "item":
        return called.value
    return None


def _is_exact(node: cst.BaseExpression) -> bool:
    """Whether a literal is exact in every floating-point dtype, bfloat16 included."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        return _is_exact(node.expression)
    if isinstance(node, cst.Integer):
        return abs(node.evaluated_value) <= 256
    if not isinstance(node, cst.Float):
        return False
    value = node.evaluated_value
    if not math.isfinite(value) or abs(value) > 256:
        return False
    [bits] = struct.unpack("<I", struct.pack("<f", value))
    single = struct.unpack("<f", struct.pack("<f", value))[0] == value
    return single and bits & 0xFFFF == 0 and (value == 0 or abs(value) > 2**-14)


def _not(tensor: Tensor) -> Tensor:
    return Tensor(f"torch.logical_not({tensor.text})")


def _negated(node: cst.BaseExpression, text: str) -> str:
    """The opposite of a Python value."""
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        operator = node.comparisons[0].operator
        if isinstance(operator, cst.Is):
            return text.replace(" is ", " is not ", 1)
        if isinstance(operator, cst.IsNot):
            return text.replace(" is not ", " is ", 1)
    return f"not {parenthesised(text)}"


def _joined(parts: Sequence[Condition], *, both: bool) -> Condition:
    flat: list[Condition] = []
    kind = Both if both else Either
    for part in parts:
        flat += part.operands if isinstance(part, kind) else [part]
    tensors = [each for each in flat if isinstance(each, Tensor)]
    others = [each for each in flat if not isinstance(each, Tensor)]
    if len(tensors) > 1:
        name = "torch.logical_and" if both else "torch.logical_or"
        text = tensors[0].text
        for each in tensors[1:]:
            text = f"{name}({text}, {each.text})"
        tensors = [Tensor(text)]
    whole = [*others, *tensors]
    return whole[0] if len(whole) == 1 else kind(tuple(whole))
