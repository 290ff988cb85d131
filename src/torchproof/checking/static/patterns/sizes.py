"""Operations whose output size depends on values, and code that depends on sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.patterns.pattern import (
    Pattern,
    PatternMatch,
    shorten,
    splits,
)
from torchproof.checking.static.source import walk

_ONE_HOT = ("torch.nn.functional.one_hot", "torch.one_hot")


class DynamicSize(Pattern):
    """`nonzero`, `unique`, `x[mask]` and others whose output size depends on values."""

    code = "GB103"
    kind = "graph_break"
    nodes = (ast.Call, ast.Subscript, ast.AugAssign)
    shown_by = ("GB101", "GB103", "GB105")
    functions = (
        "nonzero",
        "argwhere",
        "unique",
        "unique_consecutive",
        "masked_select",
        "bincount",
    )

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call | ast.Subscript | ast.AugAssign)
        if isinstance(node, ast.AugAssign):  # `x[mask] += y` reads first
            if isinstance(node.target, ast.Subscript) and _by_mask(node.target, at):
                yield self._match(node.target, at)
        elif isinstance(node, ast.Subscript):
            if isinstance(node.ctx, ast.Load) and _by_mask(node, at):
                yield self._match(node, at)
        elif self._is_call(node, at):
            yield self._match(node, at)
        elif (fix := _unsized(node, at)) is not None:
            cause = "how much {} gives depends on values, which tracing does not have"
            yield splits(node, at, cause=cause, fix=fix)

    def _match(self, node: ast.expr, at: Flow) -> PatternMatch:
        return splits(
            node,
            at,
            cause="how much {} gives depends on values, which tracing does not have",
            fix="keep the size fixed: torch.where(mask, a, b), x.masked_fill(mask, v),"
            " or multiply by the mask; or set"
            " torch._dynamo.config.capture_dynamic_output_shape_ops = True",
        )

    def _is_call(self, node: ast.Call, at: Flow) -> bool:
        dotted = at.dotted(node.func) or ""
        if dotted == "torch.where":
            return len(node.args) == 1 and not node.keywords
        if dotted.startswith("torch.") and dotted.count(".") == 1:
            return dotted[6:] in self.functions
        called = node.func
        return (
            isinstance(called, ast.Attribute)
            and called.attr in self.functions
            and at.kind(called.value).is_tensor
        )


def _by_mask(node: ast.Subscript, at: Flow) -> bool:
    """Whether a subscript is `x[mask]`."""
    base = at.kind(node.value)
    if not base.is_tensor and base is not Kind.UNKNOWN:
        return False  # a value of unknown kind that a mask indexes is a tensor
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(at.kind(part) is Kind.MASK for part in parts)


def _unsized(node: ast.Call, at: Flow) -> str | None:
    """The fix, if a call could pass the output size but leaves it to the values."""
    dotted = at.dotted(node.func) or ""
    keywords = {k.arg: k.value for k in node.keywords}
    if dotted in _ONE_HOT and None not in keywords:
        classes = node.args[1] if len(node.args) > 1 else keywords.get("num_classes")
        if classes is not None and at.text(classes) != "-1":
            return None
        return "pass the number of classes: one_hot(x, num_classes=n)"
    if dotted == "torch.repeat_interleave":
        repeats = node.args[1] if len(node.args) > 1 else keywords.get("repeats")
        repeats = repeats or (node.args[0] if node.args else None)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "repeat_interleave":
        repeats = node.args[0] if node.args else keywords.get("repeats")
    else:
        return None
    if repeats is None or "output_size" in keywords or not at.kind(repeats).is_tensor:
        return None
    return "pass the size of the result: repeat_interleave(..., output_size=n)"


class SymbolicArgument(Pattern):
    """A comparison of sizes passed to an operator that takes a plain bool."""

    code = "GB118"
    kind = "graph_break"
    nodes = (ast.Call,)
    calls = 2  # a size becomes dynamic after it has changed

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        for keyword in node.keywords:
            name = keyword.arg
            symbol = name and at.kind(keyword.value) is Kind.CONDITION
            if not symbol or not _of_torch(node, at):
                continue
            yield splits(
                node,
                at,
                cause=f"`{name}` comes from a size: a dynamic one is a symbol while"
                " tracing, and the operator takes a plain bool",
                fix=f"pass `{name}` as a plain value (`{name}=True`, or an attribute"
                " set once); or use a condition, which becomes a guard: `True if length"
                " > 1 else False` (bool(...) stays a symbol)",
            )


def _of_torch(node: ast.Call, at: Flow) -> bool:
    if isinstance(node.func, ast.Attribute) and at.kind(node.func.value).is_tensor:
        return True
    dotted = at.dotted(node.func) or ""
    direct = dotted.startswith("torch.") and dotted.count(".") == 1
    return direct or dotted.startswith("torch.nn.functional.")


class UnrolledLoop(Pattern):
    """`for t in range(x.shape[1])`: the loop becomes part of the graph."""

    code = "SP511"
    kind = "compile_time"
    severity = "low"
    nodes = (ast.For,)
    shown_by = ("SP511", "RC201", "RC220", "RC290", "DS60", "SP531")
    calls = 2

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.For)
        loop = node.iter
        if not isinstance(loop, ast.Call) or at.dotted(loop.func) != "range":
            return
        lengths = any(at.kind(each) is Kind.LENGTH for each in loop.args)
        if not lengths or not _carries(node, at):
            return
        text = shorten(at.text(loop))
        yield PatternMatch(
            loop,
            f"the loop over `{text}` would be unrolled into the graph of"
            f" {at.function.name}",
            "each step is a copy of the loop's body, and each other length is compiled"
            " again",
            "compute all steps at once with operations over the whole dimension; or"
            " compile only the body of the loop and loop outside",
        )


def _carries(loop: ast.For, at: Flow) -> bool:
    """Whether an iteration uses the result of the one before: `h = f(h, x[:, t])`."""
    stored: dict[str, int] = {}
    for statement in loop.body:
        for node in walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored.setdefault(node.id, node.lineno)
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.lineno <= stored.get(node.id, 0)
        and at.kind(node).is_tensor
        for statement in loop.body
        for node in walk(statement)
    )
