"""Tensors that compiled code creates on the CPU or moves there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.patterns.pattern import Pattern, PatternMatch, shorten

_MADE = {"tensor", "arange", "zeros", "ones", "full", "linspace", "eye"}


class OnTheCpu(Pattern):
    """`torch.tensor(0.5)` without a device, `torch.arange(n).to(...)`, `x.cpu()`."""

    code = "CG312"
    kind = "cudagraph_skip"
    severity = "low"
    nodes = (ast.Call,)
    shown_by = ("CG312", "CG318")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        if _is_scalar(node, at) or _is_moved(node, at):
            what = "creates a tensor on the CPU"
            fix = (
                "create it once in __init__ with register_buffer, or pass"
                " device=x.device; a plain Python number needs no tensor"
            )
        elif _leaves(node, at):
            what = "moves a tensor to the CPU"
            fix = "move the tensor after the compiled call"
        else:
            return
        yield PatternMatch(
            node,
            f"`{shorten(at.text(node))}` {what} in each call of {at.function.name}",
            "a CUDA graph holds the work of one GPU: what is on the CPU can cut it in"
            " two, or keep it from being captured",
            fix,
        )


def _makes(node: ast.expr, at: Flow) -> bool:
    """Whether a call creates a tensor without a device argument."""
    if not isinstance(node, ast.Call):
        return False
    dotted = at.dotted(node.func) or ""
    named = any(k.arg in ("device", None) for k in node.keywords)
    return dotted.startswith("torch.") and dotted[6:] in _MADE and not named


def _is_scalar(node: ast.Call, at: Flow) -> bool:
    """Whether a call is `torch.tensor` of a literal, as `torch.tensor(0.5)`."""
    if not _makes(node, at) or at.dotted(node.func) != "torch.tensor":
        return False
    return bool(node.args) and all(
        isinstance(n, ast.Constant | ast.UnaryOp | ast.List | ast.Tuple | ast.USub)
        for n in ast.walk(node.args[0])
        if not isinstance(n, ast.expr_context)
    )


def _is_moved(node: ast.Call, at: Flow) -> bool:
    """Whether a call is `torch.arange(n).to(x.device)`: created on the CPU first."""
    called = node.func
    if not isinstance(called, ast.Attribute) or called.attr not in ("to", "cuda"):
        return False
    if not _makes(called.value, at):
        return False
    if called.attr == "cuda":
        return True
    targets = [*node.args, *(k.value for k in node.keywords if k.arg == "device")]
    return any((at.dotted(g) or "").rpartition(".")[2] == "device" for g in targets)


def _leaves(node: ast.Call, at: Flow) -> bool:
    called = node.func
    if not isinstance(called, ast.Attribute) or not at.kind(called.value).is_tensor:
        return False
    if called.attr == "cpu":
        return True
    text = [a.value for a in node.args if isinstance(a, ast.Constant)]
    return called.attr == "to" and "cpu" in text
