"""Writes an operation of an FX graph as Python that needs only torch."""

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

# Operator namespaces of torch itself; others belong to libraries or the user.
_NAMESPACES = {
    "_c10d_functional",
    "aten",
    "c10d",
    "debugprims",
    "fsdp",
    "higher_order",
    "inductor",
    "mkl",
    "mkldnn",
    "onednn",
    "prim",
    "prims",
    "profiler",
    "quantized",
    "quantized_decomposed",
    "rngprims",
    "symm_mem",
}
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
# Operations that return nothing of use but change or check the operations after them.
_EFFECTS = {
    "_assert_async",
    "_check",
    "_enter_autocast",
    "_enter_inference_mode",
    "_exit_autocast",
    "_exit_inference_mode",
    "_set_grad_enabled",
    "set_grad_enabled",
}
# Names that the source of a candidate uses itself.
_RESERVED = {
    "Repro",
    "arguments",
    "choice",
    "fn",
    "make",
    "math",
    "normal",
    "operator",
    "pathlib",
    "positive",
    "real",
    "repro",
    "self",
    "torch",
    "whole",
    *dir(builtins),
}

Names = Mapping[fx.Node, str]


class NotPortable(Exception):
    """The reason why a graph cannot be written as code that needs only torch."""


def expression(node: fx.Node, names: Names) -> str:
    """Returns the right-hand side of a node's line."""

    def write(value: Any) -> str:
        return _value(value, names)

    if node.op == "call_method":
        return f"{write(node.args[0])}.{node.target}({_arguments(node, write, 1)})"
    if node.op == "call_function":
        return _call(node, write)
    raise NotPortable(f"it has a node of kind {node.op}")


def has_effect(node: fx.Node) -> bool:
    """Whether a node does more than return a value."""
    name = stem(node)
    in_place = name.endswith("_") and not name.endswith("__")
    inplace = node.kwargs.get("inplace") is True or "out" in node.kwargs
    augmented = node.target in _augmented() or node.target is operator.setitem
    return in_place or inplace or augmented or name in _EFFECTS or node.is_impure()


def stem(node: fx.Node) -> str:
    """Returns the unqualified name of the function that a node calls."""
    if isinstance(node.target, str):
        return node.target.rsplit(".", 1)[-1]
    operation = operator_name(node.target)
    if operation is not None:
        return operation.split(".")[1]
    return higher_order_name(node.target) or node.target.__name__


class Namer:
    """Returns unique names that reveal nothing about the user's program."""

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


def _call(node: fx.Node, write: Callable[[Any], str]) -> str:
    target: Any = node.target
    arguments = [write(value) for value in node.args]
    if target in _INFIX and len(arguments) == 2:
        return f"{_operand(arguments[0])} {_INFIX[target]} {_operand(arguments[1])}"
    if target in _PREFIX:
        return f"{_PREFIX[target]}{_operand(arguments[0])}"
    if target is operator.getitem:
        return f"{_operand(arguments[0])}[{_index(node.args[1], write)}]"
    if target is operator.setitem:  # which Dynamo does not trace under this name
        return f"{_operand(arguments[0])}.__setitem__({', '.join(arguments[1:])})"
    if target is getattr and isinstance(node.args[1], str):
        return f"{_operand(arguments[0])}.{node.args[1]}"
    name = higher_order_name(target)
    if name is not None:
        return _region(name, node, write)
    return f"{_function(target)}({_arguments(node, write, 0)})"


def _region(name: str, node: fx.Node, write: Callable[[Any], str]) -> str:
    """Writes a higher-order operator, by its public API if it has one."""
    arguments = [write(value) for value in node.args]
    if name.startswith("triton_kernel"):
        raise NotPortable("it launches a Triton kernel that the target defines")
    if name == "invoke_subgraph":
        return f"{arguments[0]}({', '.join(arguments[2:])})"
    if name in ("wrap", "inline_asm_elementwise_wrap"):
        return f"{arguments[0]}({', '.join(arguments[1:])})"
    if name.startswith("tag_activation_checkpoint"):
        how = f"use_reentrant={bool(node.kwargs.get('use_reentrant'))}"
        return f"torch.utils.checkpoint.checkpoint({', '.join([*arguments, how])})"
    if name == "autograd_function_apply":  # Dynamo can trace only its forward again
        return f"{arguments[0]}({', '.join(arguments[2:])})[0]"
    if name == "flex_attention":
        return _flex(node, write)
    if name == "cond":
        return f"torch.cond({', '.join(arguments)})"
    return f"torch.ops.higher_order.{name}({_arguments(node, write, 0)})"


def _flex(node: fx.Node, write: Callable[[Any], str]) -> str:
    """Writes flex_attention with closures over the tensors that its functions read."""
    query, key, value, score, mask, *rest = node.args
    scale, options, scored, masked = rest
    assert isinstance(mask, tuple)
    blocks = ", ".join(map(write, mask[:-1]))
    arguments = [write(query), write(key), write(value)]
    arguments.append(_closed(write(score), scored, write))
    arguments.append(f"({blocks}, {_closed(write(mask[-1]), masked, write)})")
    arguments += [write(scale), write(options)]
    return f"torch.ops.higher_order.flex_attention({', '.join(arguments)})"


def _closed(function: str, over: Any, write: Callable[[Any], str]) -> str:
    if not over:
        return function
    read = ", ".join(map(write, over))
    return f"(lambda *args: {function}(*args, {read}))"


def _arguments(node: fx.Node, write: Callable[[Any], str], skip: int) -> str:
    positional = [write(value) for value in node.args[skip:]]
    return ", ".join(
        [
            *positional,
            *(f"{name}={write(value)}" for name, value in node.kwargs.items()),
        ]
    )


def _function(target: Any) -> str:
    operation = operator_name(target)
    if operation is not None:
        if operation.split(".")[0] not in _NAMESPACES:
            raise NotPortable("it calls a custom operator that is not part of torch")
        return f"torch.ops.{operation}"
    name = str(getattr(target, "__name__", ""))
    for module in (operator, math, builtins):
        if getattr(module, name, None) is target:
            return (
                name if module is builtins else f"{module.__name__.strip('_')}.{name}"
            )
    return _public().get(id(target)) or _torch_name(target)


def _torch_name(target: Any) -> str:
    """Returns the dotted name of a function, if torch has it under that name."""
    name = qualified_name(target)
    value: Any = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    if name.split(".")[0] != "torch" or value is None:
        raise NotPortable("it calls a Python function that is not part of torch")
    return name


@functools.cache
def _public() -> dict[int, str]:
    """Maps ids of functions to their public names, in the order of `_PUBLIC`."""
    public: dict[int, str] = {}
    for place, module in _PUBLIC.items():
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_"):
                public.setdefault(id(value), f"{place}.{name}")
    return public


@functools.cache
def _augmented() -> frozenset[Any]:
    """Returns `operator.iadd` and the like, which may write to their first argument."""
    names = (
        "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift concat"
    )
    return frozenset(getattr(operator, f"i{name}") for name in names.split())


def _operand(text: str) -> str:
    return text if re.fullmatch(r"[\w.\[\]]+", text) else f"({text})"


def _index(value: Any, write: Callable[[Any], str]) -> str:
    parts = value if isinstance(value, tuple) and value else (value,)
    indices = [
        _slice(part, write) if isinstance(part, slice) else write(part)
        for part in parts
    ]
    return ", ".join(indices) + (
        "," if isinstance(value, tuple) and len(parts) == 1 else ""
    )


def _slice(value: slice, write: Callable[[Any], str]) -> str:
    ends = ["" if end is None else write(end) for end in (value.start, value.stop)]
    step = "" if value.step is None else f":{write(value.step)}"
    return ":".join(ends) + step


def _value(value: Any, names: Names) -> str:
    """Writes an argument as source."""
    if isinstance(value, fx.Node):
        return names[value]
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
    return _container(value, names)


def _is_finite(value: complex) -> bool:
    return isinstance(value, complex) or math.isfinite(value)


def _container(value: Any, names: Names) -> str:
    def write(part: Any) -> str:
        return _value(part, names)

    if isinstance(value, slice):
        return f"slice({write(value.start)}, {write(value.stop)}, {write(value.step)})"
    if isinstance(value, tuple):
        parts = [write(part) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if isinstance(value, list):
        return f"[{', '.join(map(write, value))}]"
    if isinstance(value, dict):
        pairs = (f"{write(key)}: {write(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    if (
        callable(value)
        and (getattr(value, "__module__", "") or "").split(".")[0] == "torch"
    ):
        return _function(value)
    raise NotPortable(f"one of its constants is of type {type(value).__name__}")
