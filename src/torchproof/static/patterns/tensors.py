"""What compiled code does with the values of tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.static.flow import Flow
from torchproof.static.kinds import Kind
from torchproof.static.patterns._pattern import Pattern, Sighting, shorten

_CASTS = ("int", "float", "bool", "complex", "math.ceil", "math.floor", "math.sqrt")
_READS = {"item": "a number", "tolist": "a list", "__bool__": "a bool"}


class ToPython(Pattern):
    """`.item()`, `.tolist()`, `int()`, `float()` and `bool()` of a tensor."""

    code, kind = "GB101", "graph_break"
    nodes = (ast.Call,)
    shown_by = ("GB101", "HS901", "DS602")

    def look(self, node: ast.AST, at: Flow) -> Iterator[Sighting]:
        assert isinstance(node, ast.Call)
        called = node.func
        what = None
        if isinstance(called, ast.Attribute) and at.kind(called.value).is_tensor:
            what = _READS.get(called.attr)
        elif at.dotted(called) in _CASTS and len(node.args) == 1:
            what = "a number" if at.kind(node.args[0]).is_tensor else None
        if what is None:
            return
        text = shorten(at.text(node))
        yield Sighting(
            node,
            f"`{text}` would split the graph of {at.function.name}",
            f"`{text}` reads {what} out of a tensor, which tracing cannot",
            "keep it a tensor and read it after the compiled call, or set"
            " torch._dynamo.config.capture_scalar_outputs = True",
        )


class Branch(Pattern):
    """`if`, `while`, `and`, `or`, `not` and `assert` of a tensor."""

    code, kind = "GB102", "graph_break"
    nodes = (ast.If, ast.While, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.Assert)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Sighting]:
        for test in _tests(node):
            if not at.kind(test).is_tensor:
                continue
            word = _word(node)
            text = shorten(at.text(test))
            yield Sighting(
                test,
                f"`{word} {text}` would split the graph of {at.function.name}",
                f"the {word} depends on the value of a tensor, which tracing does not"
                " have",
                _cure(node),
            )


def _tests(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return node.values[:-1]  # the last one is given on as it is
    if isinstance(node, ast.UnaryOp):
        return [node.operand] if isinstance(node.op, ast.Not) else []
    # `assert tensor, "text"` is captured; only what is more than that breaks.
    return []


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.While):
        return "while"
    if isinstance(node, ast.BoolOp):
        return "and" if isinstance(node.op, ast.And) else "or"
    return "not" if isinstance(node, ast.UnaryOp) else "if"


def _cure(node: ast.AST) -> str:
    if isinstance(node, ast.While):
        return (
            "bound the loop by a Python number, or use torch.while_loop; else loop"
            " outside the compiled function"
        )
    if isinstance(node, ast.BoolOp | ast.UnaryOp):
        return "use torch.logical_and, logical_or or logical_not, or `&`, `|` and `~`"
    return (
        "compute both sides and choose with torch.where, or use torch.cond; if the"
        " condition is known before the call, pass it as a Python bool"
    )


class DynamicSize(Pattern):
    """`nonzero`, `unique`, `x[mask]` and others whose output size depends on values."""

    code, kind = "GB103", "graph_break"
    nodes = (ast.Call, ast.Subscript)
    functions = ("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select")

    def look(self, node: ast.AST, at: Flow) -> Iterator[Sighting]:
        if not (_is_mask_index(node, at) or self._is_call(node, at)):
            return
        text = shorten(at.text(node))
        yield Sighting(
            node,
            f"`{text}` would split the graph of {at.function.name}",
            f"how much `{text}` gives depends on values, which tracing does not have",
            "keep the size fixed: torch.where(mask, a, b), x.masked_fill(mask, v), or"
            " multiply by the mask; or set"
            " torch._dynamo.config.capture_dynamic_output_shape_ops = True",
        )

    def _is_call(self, node: ast.AST, at: Flow) -> bool:
        if not isinstance(node, ast.Call):
            return False
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


def _is_mask_index(node: ast.AST, at: Flow) -> bool:
    """`x[mask]` that is read; writing a plain value through a mask needs no size."""
    if not isinstance(node, ast.Subscript) or not at.kind(node.value).is_tensor:
        return False
    if not isinstance(node.ctx, ast.Load):
        return False
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(at.kind(part) is Kind.MASK for part in parts)
