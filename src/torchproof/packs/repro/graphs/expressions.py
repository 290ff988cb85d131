"""An operation of an FX graph as a line of Python that needs torch alone."""

from __future__ import annotations

import builtins
import functools
import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from torchproof.torch_private import higher_order_name, operator_name, qualified_name

# What torch itself registers; any other namespace is a library's or the user's.
_NAMESPACES = {"aten", "prim", "prims", "higher_order", "quantized", "mkldnn", "mkl"}
_NAMESPACES |= {
    "inductor",
    "rngprims",
    "_c10d_functional",
    "c10d",
    "quantized_decomposed",
}
_NAMESPACES |= {"onednn", "fsdp", "debugprims", "profiler", "symm_mem"}
_PUBLIC = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
}
_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
    operator.floordiv: "//", operator.mod: "%", operator.pow: "**",
    operator.matmul: "@", operator.and_: "&", operator.or_: "|", operator.xor: "^",
    operator.lshift: "<<", operator.rshift: ">>", operator.eq: "==",
    operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=",
}  # fmt: skip
_PREFIX = {operator.neg: "-", operator.invert: "~", operator.pos: "+"}
# They change how what follows is run.
_SWITCHES = {"_set_grad_enabled", "set_grad_enabled", "_check", "_assert_async"}
_SWITCHES |= {"_enter_autocast", "_exit_autocast"}
_SWITCHES |= {"_enter_inference_mode", "_exit_inference_mode"}
_RESERVED = {"torch", "math", "operator", "pathlib", "self", "make", "repro", "Repro"}
_RESERVED |= {"arguments", "normal", "positive", "whole", "choice", "real", "fn"}
_RESERVED |= {*dir(builtins)}

Names = Mapping[fx.Node, str]


class NotPortable(Exception):
    """Why a graph cannot be written as code that needs torch alone."""


def expression(node: fx.Node, known: Names) -> str:
    """The right-hand side of a node's line."""

    def told(value: Any) -> str:
        return _value(value, known)

    if node.op == "call_method":
        return f"{told(node.args[0])}.{node.target}({_given(node, told, 1)})"
    if node.op == "call_function":
        return _call(node, told)
    raise NotPortable(f"it has a node of the kind {node.op}")


def acts(node: fx.Node) -> bool:
    """Whether a node does more than giving a value."""
    name = stem(node)
    in_place = name.endswith("_") and not name.endswith("__")
    inplace = node.kwargs.get("inplace") is True or "out" in node.kwargs
    augmented = node.target in _augmented() or node.target is operator.setitem
    return in_place or inplace or augmented or name in _SWITCHES or node.is_impure()


def stem(node: fx.Node) -> str:
    """The plain name of what a node calls."""
    if isinstance(node.target, str):
        return node.target.rsplit(".", 1)[-1]
    told = operator_name(node.target)
    if told is not None:
        return told.split(".")[1]
    return higher_order_name(node.target) or node.target.__name__


class Namer:
    """Names that say nothing of the user's program, each given once."""

    def __init__(self) -> None:
        self._taken = set(_RESERVED)

    def __call__(self, wish: str) -> str:
        plain = re.sub(r"\W", "_", wish).strip("_") or "value"
        plain = f"value_{plain}" if plain[0].isdigit() else plain
        name, count = plain, 0
        while name in self._taken or keyword.iskeyword(name):
            count += 1
            name = f"{plain}_{count}"
        self._taken.add(name)
        return name


def _call(node: fx.Node, told: Callable[[Any], str]) -> str:
    target: Any = node.target
    arguments = [told(value) for value in node.args]
    if target in _INFIX and len(arguments) == 2:
        return f"{_operand(arguments[0])} {_INFIX[target]} {_operand(arguments[1])}"
    if target in _PREFIX:
        return f"{_PREFIX[target]}{_operand(arguments[0])}"
    if target is operator.getitem:
        return f"{_operand(arguments[0])}[{_index(node.args[1], told)}]"
    if target is operator.setitem:  # which Dynamo does not trace under this name
        return f"{_operand(arguments[0])}.__setitem__({', '.join(arguments[1:])})"
    if target is getattr and isinstance(node.args[1], str):
        return f"{_operand(arguments[0])}.{node.args[1]}"
    name = higher_order_name(target)
    if name is not None:
        return _region(name, node, told)
    return f"{_function(target)}({_given(node, told, 0)})"


def _region(name: str, node: fx.Node, told: Callable[[Any], str]) -> str:
    """A call with graphs among its arguments, in public words where there are any."""
    given = [told(value) for value in node.args]
    if name.startswith("triton_kernel"):
        raise NotPortable("it launches a Triton kernel that the target defines")
    if name == "invoke_subgraph":
        return f"{given[0]}({', '.join(given[2:])})"
    if name in ("wrap", "inline_asm_elementwise_wrap"):
        return f"{given[0]}({', '.join(given[1:])})"
    if name.startswith("tag_activation_checkpoint"):
        how = f"use_reentrant={bool(node.kwargs.get('use_reentrant'))}"
        return f"torch.utils.checkpoint.checkpoint({', '.join([*given, how])})"
    if name == "autograd_function_apply":  # its forward: what Dynamo can trace again
        return f"{given[0]}({', '.join(given[2:])})[0]"
    if name == "flex_attention":
        return _flex(node, told)
    if name == "cond":
        return f"torch.cond({', '.join(given)})"
    return f"torch.ops.higher_order.{name}({_given(node, told, 0)})"


def _flex(node: fx.Node, told: Callable[[Any], str]) -> str:
    """As its caller writes it: tensors that its functions read are not told apart."""
    query, key, value, score, mask, *rest = node.args
    scale, options, scored, masked = rest
    assert isinstance(mask, tuple)
    blocks = ", ".join(map(told, mask[:-1]))
    given = [told(query), told(key), told(value), _closed(told(score), scored, told)]
    given.append(f"({blocks}, {_closed(told(mask[-1]), masked, told)})")
    given += [told(scale), told(options)]
    return f"torch.ops.higher_order.flex_attention({', '.join(given)})"


def _closed(function: str, over: Any, told: Callable[[Any], str]) -> str:
    if not over:
        return function
    read = ", ".join(map(told, over))
    return f"(lambda *given: {function}(*given, {read}))"


def _given(node: fx.Node, told: Callable[[Any], str], skip: int) -> str:
    positional = [told(value) for value in node.args[skip:]]
    return ", ".join(
        [*positional, *(f"{name}={told(value)}" for name, value in node.kwargs.items())]
    )


def _function(target: Any) -> str:
    told = operator_name(target)
    if told is not None:
        if told.split(".")[0] not in _NAMESPACES:
            raise NotPortable("it calls a custom operator, which torch alone lacks")
        return f"torch.ops.{told}"
    name = str(getattr(target, "__name__", ""))
    for module in (operator, math, builtins):
        if getattr(module, name, None) is target:
            return (
                name if module is builtins else f"{module.__name__.strip('_')}.{name}"
            )
    return _public().get(id(target)) or _torch_name(target)


def _torch_name(target: Any) -> str:
    """The dotted name of a function of torch, if it is found under that name."""
    name = qualified_name(target)
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    if name.split(".")[0] != "torch" or found is None:
        raise NotPortable("it calls a Python function that torch alone lacks")
    return name


@functools.cache
def _public() -> dict[int, str]:
    """Functions by their public names, the first place that has one first."""
    found: dict[int, str] = {}
    for place, module in _PUBLIC.items():
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_"):
                found.setdefault(id(value), f"{place}.{name}")
    return found


@functools.cache
def _augmented() -> frozenset[Any]:
    """`operator.iadd` and those like it, which may write to their first argument."""
    names = (
        "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift concat"
    )
    return frozenset(getattr(operator, f"i{name}") for name in names.split())


def _operand(text: str) -> str:
    return text if re.fullmatch(r"[\w.\[\]]+", text) else f"({text})"


def _index(value: Any, told: Callable[[Any], str]) -> str:
    parts = value if isinstance(value, tuple) and value else (value,)
    shown = [
        _slice(part, told) if isinstance(part, slice) else told(part) for part in parts
    ]
    return ", ".join(shown) + (
        "," if isinstance(value, tuple) and len(parts) == 1 else ""
    )


def _slice(value: slice, told: Callable[[Any], str]) -> str:
    ends = ["" if end is None else told(end) for end in (value.start, value.stop)]
    step = "" if value.step is None else f":{told(value.step)}"
    return ":".join(ends) + step


def _value(value: Any, known: Names) -> str:
    """An argument as source."""
    if isinstance(value, fx.Node):
        return known[value]
    if value is None or value is Ellipsis or isinstance(value, bool | str | bytes):
        return "..." if value is Ellipsis else repr(value)
    if isinstance(value, int | float | complex):
        return repr(value) if _is_finite(value) else f'float("{value}")'
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return repr(value.node.hint)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return repr(value)
    return _container(value, known)


def _is_finite(value: complex) -> bool:
    return isinstance(value, complex) or math.isfinite(value)


def _container(value: Any, known: Names) -> str:
    def told(part: Any) -> str:
        return _value(part, known)

    if isinstance(value, slice):
        return f"slice({told(value.start)}, {told(value.stop)}, {told(value.step)})"
    if isinstance(value, tuple):
        parts = [told(part) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if isinstance(value, list):
        return f"[{', '.join(map(told, value))}]"
    if isinstance(value, dict):
        pairs = (f"{told(key)}: {told(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    if (
        callable(value)
        and (getattr(value, "__module__", "") or "").split(".")[0] == "torch"
    ):
        return _function(value)
    raise NotPortable(f"one of its constants is of the type {type(value).__name__}")
