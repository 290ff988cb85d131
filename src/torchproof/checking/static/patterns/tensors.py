"""Code that needs the values of tensors, which tracing does not have."""

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

_CASTS = {"int", "float", "bool", "complex", "range"}
# Functions of math that take a sequence instead of a number.
_SEQUENCES = {"math.prod", "math.fsum", "math.dist", "math.sumprod"}
_READS = {"item": "a number", "tolist": "a list", "__bool__": "a bool"}
# Functions of torch and methods of a tensor whose arguments are sizes.
_SIZED = {"arange", "zeros", "ones", "empty", "rand", "randn", "randperm", "eye"}
_SIZED_METHODS = {"view", "reshape", "expand", "repeat", "new_zeros", "new_ones"}


class ToPython(Pattern):
    """`.item()`, `.tolist()`, `int()`, `math.sqrt()`, `range()`, slices by a tensor."""

    code = "GB101"
    kind = "graph_break"
    nodes = (ast.Call, ast.Subscript)
    shown_by = ("GB101", "GB103", "GB113", "GB117", "HS901", "DS602")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call | ast.Subscript)
        called = isinstance(node, ast.Call)
        what = _read_by_call(node, at) if called else _read_by_index(node, at)  # type: ignore[arg-type]
        if what is not None:
            yield splits(
                node,
                at,
                cause=f"{{}} reads {what} out of a tensor, which tracing cannot",
                fix="keep the value as a tensor and read it after the compiled call, or"
                " set torch._dynamo.config.capture_scalar_outputs = True",
            )


def _read_by_call(node: ast.Call, at: Flow) -> str | None:
    called = node.func
    if isinstance(called, ast.Attribute) and at.kind(called.value).is_tensor:
        if called.attr in _SIZED_METHODS:
            return _size_in(node.args, at)
        return _READS.get(called.attr)
    dotted = at.dotted(called) or ""
    if dotted in _CASTS or (dotted.startswith("math.") and dotted not in _SEQUENCES):
        return (
            "a number" if any(at.kind(each).is_tensor for each in node.args) else None
        )
    if dotted.startswith("torch.") and dotted[6:] in _SIZED:
        return _size_in(node.args, at)
    return None


def _size_in(arguments: list[ast.expr], at: Flow) -> str | None:
    every = [
        e for a in arguments for e in (a.elts if isinstance(a, ast.Tuple) else [a])
    ]
    return "a size" if any(at.kind(each).is_tensor for each in every) else None


def _read_by_index(node: ast.Subscript, at: Flow) -> str | None:
    container = at.kind(node.value)
    listed = container in (Kind.PYTHON, Kind.SIZES, Kind.TENSORS)
    if listed and at.kind(node.slice).is_tensor:
        return "an index"
    if not container.is_tensor:
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    bounds = [b for p in parts if isinstance(p, ast.Slice) for b in (p.lower, p.upper)]
    return "a size" if any(b and at.kind(b).is_tensor for b in bounds) else None


class Branch(Pattern):
    """`if`, `while`, `and`, `or`, `not`, `in` and `assert` of a tensor."""

    code = "GB102"
    kind = "graph_break"
    nodes = (
        ast.If,
        ast.While,
        ast.IfExp,
        ast.BoolOp,
        ast.UnaryOp,
        ast.Assert,
        ast.Compare,
        ast.ListComp,
        ast.SetComp,
        ast.GeneratorExp,
        ast.DictComp,
    )
    shown_by = ("GB101", "GB102", "GB117")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        for test in _tests(node, at):
            word = _word(node)
            yield PatternMatch(
                test,
                f"`{word}{shorten(at.text(test))}` would cause a graph break in"
                f" {at.function.name}",
                f"`{shorten(at.text(test))}` depends on the value of a tensor, which"
                " tracing does not have",
                _fix(node),
            )


def _tests(node: ast.AST, at: Flow) -> list[ast.expr]:
    """The tensors that a node converts to a bool."""
    if isinstance(node, ast.Compare):
        return [node] if _is_asked(node, at) else []
    if isinstance(node, ast.Assert):
        # Dynamo captures `assert tensor, "text"`, but not with an f-string.
        built = node.msg is not None and not isinstance(node.msg, ast.Constant)
        tests = [node.test] if built else []
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.BoolOp):
        tests = node.values[:-1]  # the last operand is returned without a test
    elif isinstance(node, ast.UnaryOp):
        tests = [node.operand] if isinstance(node.op, ast.Not) else []
    else:
        tests = [test for each in node.generators for test in each.ifs]  # type: ignore[attr-defined]
    return [test for test in tests if at.kind(test).is_tensor]


def _is_asked(node: ast.Compare, at: Flow) -> bool:
    """Whether a comparison converts to bool, as `a < x < b` and `x in (1, 2)` do."""
    if len(node.ops) > 1:
        return at.kind(node).is_tensor
    if not isinstance(node.ops[0], ast.In | ast.NotIn):
        return False
    [right] = node.comparators
    if at.kind(right).is_tensor:
        return True
    numbers = isinstance(right, ast.Tuple | ast.List | ast.Set) and all(
        isinstance(each, ast.Constant) for each in right.elts
    )
    return numbers and at.kind(node.left).is_tensor


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return "and " if isinstance(node.op, ast.And) else "or "
    words = {ast.While: "while ", ast.UnaryOp: "not ", ast.Assert: "assert "}
    return "" if isinstance(node, ast.Compare) else words.get(type(node), "if ")


def _fix(node: ast.AST) -> str:
    if isinstance(node, ast.While):
        return (
            "bound the loop by a Python number, or use torch.while_loop; or loop"
            " outside the compiled function"
        )
    if isinstance(node, ast.Assert):
        return (
            "use a plain string: Dynamo captures `assert condition, 'text'`, but not an"
            " f-string; or check outside the compiled function"
        )
    if isinstance(node, ast.BoolOp | ast.UnaryOp):
        return (
            "use torch.logical_and, logical_or or logical_not, or `&`, `|` and `~`; in"
            " an assert, test the tensor itself: `assert (x > 0).all(), 'text'`"
        )
    if isinstance(node, ast.Compare):
        return "compare with tensors: torch.isin, or `(a < x) & (x < b)`"
    return (
        "compute both branches and select with torch.where, or use torch.cond; if the"
        " condition is known before the call, pass it as a Python bool"
    )


class Comparison(Pattern):
    """`torch.equal`, `torch.allclose`, `any()` and `all()`: a bool from tensors."""

    code = "GB102"
    kind = "graph_break"
    nodes = (ast.Call,)
    shown_by = ("GB101", "GB102", "GB117")
    functions = ("equal", "allclose", "is_nonzero")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        if dotted in ("any", "all"):
            arguments = [at.kind(each) for each in node.args]
            gives_bool = any(
                kind.is_tensor or kind is Kind.TENSORS for kind in arguments
            )
        elif dotted.startswith("torch."):
            gives_bool = dotted[6:] in self.functions
        else:
            called = node.func
            gives_bool = (
                isinstance(called, ast.Attribute)
                and called.attr in self.functions
                and at.kind(called.value).is_tensor
            )
        if gives_bool:
            yield splits(
                node,
                at,
                cause="{} answers with a Python bool, for which tracing has no value",
                fix="keep the result as a tensor, torch.isclose(a, b).all() or (a == b)"
                ".all(), and select with torch.where; or decide outside the compiled"
                " function",
            )


class ToText(Pattern):
    """`str()` and `repr()` of a tensor, and `sorted()` of tensors."""

    code = "GB117"
    kind = "graph_break"
    nodes = (ast.Call,)
    shown_by = ("GB101", "GB117")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func)
        if dotted not in ("str", "repr", "sorted") or not node.args:
            return
        kind = at.kind(node.args[0])
        if dotted == "sorted" and (kind.is_tensor or kind is Kind.TENSORS):
            fix = "stack them into one tensor and use torch.sort or torch.argsort"
        elif dotted != "sorted" and kind.is_tensor:
            fix = "use its shape or dtype, or build the text after the compiled call"
        else:
            return
        yield splits(
            node, at, cause="{} needs the values, which tracing does not have", fix=fix
        )
