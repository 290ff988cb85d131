"""Writes a graph that Dynamo captured as a program that needs only torch.

`plain_graph` copies the graph: all inputs are tensors, all names are neutral, and
operators without a public API are replaced. torch.fx prints the operations of the copy.
"""

from __future__ import annotations

import builtins
import itertools
import math
import operator
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

from torchproof.packs.repro.tensor_source import (
    extent,
    numbers_source,
    tensor_source,
    view_source,
)
from torchproof.records import Namespace
from torchproof.torch_private import (
    higher_order_name,
    is_wrapped,
    operator_name,
    qualified_name,
)

# Operator namespaces of torch itself; others belong to libraries or the user.
_OPERATORS = re.compile(
    r"(_c10d_functional|aten|c10d|debugprims|fsdp|higher_order|inductor|mkl|mkldnn"
    r"|onednn|prims?|profiler|quantized(_decomposed)?|rngprims|symm_mem)\."
)
_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_DENSE = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
# How Dynamo names tensors that belong to a module or to `self`.
_OWNED = re.compile(r"_(parameters|buffers|modules)_|^L_self_")
# What torch.fx prints: `; a = b = None` to free memory, and the names of `_call` and
# `_closed` as globals.
_FREES = re.compile(r";  \w+(?: = \w+)* = None *$", re.MULTILINE)
_CALLS = re.compile(r"\btorchproof\w*__call\((\w+)(?:, )?")
_CLOSES = re.compile(r"\btorchproof\w*__closed\b")
_CLOSED = """\
def closed(function, values):
    return lambda *args: function(*args, *values)
"""
_RECORDED = """\
def recorded(name, device="cpu"):
    path = pathlib.Path(__file__).with_name(name)
    return torch.load(path, map_location=device, weights_only=True)
"""


class NotPortable(Exception):
    """The reason why a graph cannot be written as code that needs only torch."""


def plain_graph(
    gm: fx.GraphModule, args: Sequence[Any]
) -> tuple[fx.GraphModule, list[Tensor]]:
    """Returns a copy of the graph, and the tensors to call it with."""
    copy = _Copy(gm, itertools.count())
    tensors = copy.add_inputs(args)
    return copy.finished(), tensors


class _Copy:
    """Copies the operations of a graph or of a subgraph; `parts` numbers subgraphs."""

    def __init__(self, gm: fx.GraphModule, parts: Iterator[int]) -> None:
        self._gm = gm
        self._parts = parts
        self._graph = fx.Graph()
        self._root: Namespace = {}
        self._values: dict[fx.Node, Any] = {}  # nodes of the copy, or constants

    def add_inputs(self, args: Sequence[Any]) -> list[Tensor]:
        """Adds a placeholder for each tensor: arguments and constants of the graph."""
        nodes = [node for node in self._gm.graph.nodes if node.op == "placeholder"]
        values = dict(zip(nodes, args, strict=True))
        for node in self._gm.graph.nodes:
            if node.op == "get_attr":
                values[node] = _attribute(self._gm, str(node.target))
        tensors = []
        for node, value in values.items():
            if _is_wrapped_number(node, value):
                self._values |= {user: value.item() for user in node.users}
            elif isinstance(value, Tensor):
                self._add_tensor(node, value)
                tensors.append(value)
        for node in nodes:
            if not isinstance(values[node], Tensor):
                self._values[node] = self._number(node, values[node])
        return tensors

    def add_parameters(self) -> None:
        """Adds the placeholders of a subgraph."""
        nodes = [node for node in self._gm.graph.nodes if node.op == "placeholder"]
        for at, node in enumerate(nodes):
            self._values[node] = self._graph.placeholder(f"a{at}")

    def finished(self) -> fx.GraphModule:
        """Adds the operations and returns the copy."""
        for node in self._gm.graph.nodes:
            if node in self._values or node.op == "placeholder":
                continue
            if node.op == "output":
                self._graph.output(self._copied(node.args[0]))
            elif node.op == "get_attr":
                self._values[node] = self._part(node)
            elif node.op == "call_method":
                self._values[node] = self._graph.call_method(
                    node.target, self._copied(node.args), self._copied(node.kwargs)
                )
            elif node.op == "call_function":
                self._values[node] = self._call(node)
            else:
                raise NotPortable("it calls a module as one operation")
        for copy in [node for node in self._graph.nodes if node.op == "get_attr"]:
            if not copy.users:
                self._graph.erase_node(copy)
        return fx.GraphModule(self._root, self._graph)

    def _add_tensor(self, node: fx.Node, value: Tensor) -> None:
        if type(value) not in _DENSE or value.layout != torch.strided:
            raise NotPortable(
                f"it uses a tensor of type {type(value).__name__}"
                f" and layout {value.layout}"
            )
        if is_wrapped(value):
            raise NotPortable("it uses a tensor inside of a transform")
        role = "x"
        if isinstance(value, torch.nn.Parameter):
            role = "w"
        elif node.op == "get_attr" or _OWNED.search(str(node.target)):
            role = "b"
        count = sum(other.meta["role"] == role for other in self._graph.nodes)
        copy = self._graph.placeholder(f"{role}{count}")
        traced = node.meta.get("example_value")
        sizes = traced.shape if isinstance(traced, Tensor) and role == "x" else ()
        dynamic = [at for at, size in enumerate(sizes) if type(size) is not int]
        copy.meta = {"role": role, "dynamic": dynamic}
        self._values[node] = copy

    def _number(self, node: fx.Node, value: Any) -> Any:
        """Returns a number input as the size of a tensor input, if it is one."""
        symbol = node.meta.get("example_value")
        if isinstance(symbol, torch.SymInt):
            for other, copy in self._values.items():
                traced = other.meta.get("example_value")
                sizes = traced.shape if isinstance(traced, Tensor) else ()
                for at, size in enumerate(sizes):
                    if type(size) is not int and str(size) == str(symbol):
                        return self._graph.call_method("size", (copy, at))
        if isinstance(value, bool | int | float):
            return value
        raise NotPortable(f"one of its inputs is of type {type(value).__name__}")

    def _part(self, node: fx.Node) -> fx.Node:
        part = _attribute(self._gm, str(node.target))
        if not isinstance(part, fx.GraphModule):
            raise NotPortable(f"it contains an object of type {type(part).__name__}")
        copy = _Copy(part, self._parts)
        copy.add_parameters()
        users = {higher_order_name(user.target) for user in node.users}
        kind = "region" if "invoke_subgraph" in users else "part"
        name = f"{kind}_{next(self._parts)}"
        self._root[name] = copy.finished()
        return self._graph.create_node("get_attr", name, name=name)

    def _copied(self, value: Any) -> Any:
        return fx.node.map_aggregate(value, self._copied_leaf)

    def _copied_leaf(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self._values[value]
        if isinstance(value, _SYMBOLS):
            return value.node.hint
        is_torch = str(getattr(value, "__module__", "")).split(".")[0] == "torch"
        if isinstance(value, _CONSTANTS) or (callable(value) and is_torch):
            return value
        raise NotPortable(f"one of its constants is of type {type(value).__name__}")

    def _call(self, node: fx.Node) -> fx.Node:
        target: Any = node.target
        args, kwargs = self._copied(node.args), self._copied(node.kwargs)
        name = higher_order_name(target)
        if name is not None:
            return self._higher_order(name, target, args, kwargs)
        _assert_portable(target)
        return self._graph.call_function(target, args, kwargs)

    def _higher_order(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        """Calls the public API of a higher-order operator, if it has one."""
        add = self._graph.call_function
        if name.startswith("triton_kernel"):
            raise NotPortable("it launches a Triton kernel that the target defines")
        if name == "invoke_subgraph":
            return add(_call, (args[0], *args[2:]))
        if name in ("wrap", "inline_asm_elementwise_wrap"):
            return add(_call, args)
        if name.startswith("tag_activation_checkpoint"):
            reentrant = bool(kwargs.get("use_reentrant"))
            return add(checkpoint, args, {"use_reentrant": reentrant})
        if name == "autograd_function_apply":  # Dynamo can trace only its forward again
            return add(operator.getitem, (add(_call, (args[0], *args[2:])), 0))
        if name == "flex_attention":
            query, key, value, score, mask, scale, options, scored, masked = args
            blocks = (*mask[:-1], add(_closed, (mask[-1], masked)))
            score = add(_closed, (score, scored))
            return add(target, (query, key, value, score, blocks, scale, options))
        return add(target, args, kwargs)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _closed(function: Callable[..., Any], values: Sequence[Any]) -> Callable[..., Any]:
    return lambda *args: function(*args, *values)


def _assert_portable(target: Any) -> None:
    operation = operator_name(target)
    if operation is not None:
        if not _OPERATORS.match(operation):
            raise NotPortable("it calls a custom operator that is not part of torch")
        return
    name = str(getattr(target, "__name__", ""))
    if any(getattr(m, name, None) is target for m in (operator, math, builtins)):
        return
    value: Any = torch
    first, *path = qualified_name(target).split(".")
    for part in path:
        value = getattr(value, part, None)
    if first != "torch" or value is None:
        raise NotPortable("it calls a Python function that is not part of torch")


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _is_wrapped_number(node: fx.Node, value: Any) -> bool:
    """Whether a tensor is a Python float that Dynamo has wrapped."""
    if not isinstance(value, Tensor) or value.shape or value.dtype != torch.float64:
        return False
    users = {(user.op, user.target) for user in node.users}
    return users == {("call_method", "item")}


# -- writing ---------------------------------------------------------------------------


def graph_source(
    gm: fx.GraphModule,
    tensors: Sequence[Tensor],
    *,
    calls: int = 1,
    contexts: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> str:
    """Returns source that defines `make()`; `files` name recorded tensors by input."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    inputs = {n.name: (n, tensor) for n, tensor in zip(nodes, tensors, strict=True)}
    state = {name: v for name, v in inputs.items() if _role(v[0]) != "x"}
    arguments = {name: v for name, v in inputs.items() if name not in state}
    files = files or {}
    program = _class(gm, state, list(arguments), contexts=contexts, files=files)
    make = _arguments(arguments, files)
    make += (
        "\n\ndef make():\n    torch.manual_seed(0)\n"
        f"    return Repro(), [arguments() for _ in range({calls})]\n"
    )
    helpers = [_CLOSED] if "closed(" in program else []
    imports = _imports(gm)
    if files:
        helpers.append(_RECORDED)
        imports.insert(0, "import pathlib\n")
    head = "".join([*imports, "\n" if imports else "", "import torch\n"])
    parts = [_function(name, part) for name, part in _parts(gm)]
    return "\n\n".join([head, *helpers, *parts, program, make])


def contexts_now() -> tuple[str, ...]:
    """Returns the grad mode and autocast that are active, as decorators."""
    contexts = []
    if torch.is_inference_mode_enabled():
        contexts.append("torch.inference_mode()")
    elif not torch.is_grad_enabled():
        contexts.append("torch.no_grad()")
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            contexts.append(f'torch.autocast("{device}", dtype={dtype})')
    return tuple(contexts)


def _role(node: fx.Node) -> str:
    """Returns x for an argument, w for a weight, b for a buffer."""
    return str(node.meta.get("role", "x"))


def _class(
    gm: fx.GraphModule,
    state: Mapping[str, tuple[fx.Node, Tensor]],
    arguments: Sequence[str],
    *,
    contexts: Sequence[str],
    files: Mapping[str, str],
) -> str:
    lines = []
    for name, (node, tensor) in state.items():
        text = _tensor(name, tensor, files)
        if _role(node) == "w":
            frozen = "" if tensor.requires_grad else ", requires_grad=False"
            lines.append(f"self.{name} = torch.nn.Parameter({text}{frozen})")
        else:
            lines.append(f"self.{name} = torch.nn.Buffer({text})")
    start = ["def __init__(self):", "    super().__init__()"]
    start += [*(f"    {line}" for line in lines), ""]
    forward = [f"@{context}" for context in contexts]
    forward.append(f"def forward({', '.join(['self', *arguments])}):")
    forward += [f"    {name} = self.{name}" for name in state]
    body = "\n".join([*(start if state else []), *forward])
    body = f"{body}\n{textwrap.indent(_body(gm), '    ')}"
    return "class Repro(torch.nn.Module):\n" + textwrap.indent(body, "    ")


def _function(name: str, gm: fx.GraphModule) -> str:
    nodes = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    region = "@torch.compiler.nested_compile_region\n"
    head = f"{region if name.startswith('region') else ''}def {name}"
    return f"{head}({', '.join(nodes)}):\n{textwrap.indent(_body(gm), '    ')}"


def _body(gm: fx.GraphModule) -> str:
    """Returns the statements of the graph as torch.fx prints them."""
    text = gm.graph.python_code("self").src.split(":\n", 1)[1]
    text = textwrap.dedent(_FREES.sub("", text)).strip() + "\n"
    text = re.sub(r"^((?:part|region)_\d+) = self\.\1\n", "", text, flags=re.MULTILINE)
    text = _CLOSES.sub("closed", _CALLS.sub(r"\1(", text))
    return re.sub(r"\btorch\._C\._nn\.(\w+)", _public, text)


def _public(match: re.Match[str]) -> str:
    """Returns the public name of a function of torch.nn."""
    public = hasattr(torch.nn.functional, match[1])
    return f"torch.nn.functional.{match[1]}" if public else match[0]


def _parts(gm: fx.GraphModule) -> Iterator[tuple[str, fx.GraphModule]]:
    """Yields the subgraphs that are used, each after those that it calls."""
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            part = _attribute(gm, node.target)
            yield from _parts(part)
            yield node.target, part


def _imports(gm: fx.GraphModule) -> list[str]:
    """Imports what torch.fx prints as a global name, such as `device` and `inf`."""
    imports = set()
    for part in (gm, *(part for _, part in _parts(gm))):
        body = _body(part)
        for name, value in part.graph.python_code("self").globals.items():
            if name == "torch" or not re.search(rf"(?<![\w.]){name}\b", body):
                continue
            where = "math" if name in ("inf", "nan") else value.__module__.strip("_")
            own = name if name in ("inf", "nan") else value.__name__
            renamed = "" if own == name else f" as {name}"
            imports.add(f"from {where} import {own}{renamed}\n")
    return sorted(imports)


def _arguments(
    inputs: Mapping[str, tuple[fx.Node, Tensor]], files: Mapping[str, str]
) -> str:
    """Returns the function that creates the arguments of one call."""
    lines = []
    shared = _shared_memory({k: tensor for k, (_, tensor) in inputs.items()})
    for memory, names in shared.items():
        if not files:
            tensors = [inputs[name][1] for name in names]
            ends = [int(t.storage_offset()) + extent(t) for t in tensors]
            lines.append(f"{memory} = {numbers_source(tensors[0], (max(ends),))}")
    memories = {name: memory for memory, names in shared.items() for name in names}
    for name, (node, tensor) in inputs.items():
        text = _tensor(name, tensor, files)
        if name in memories and not files:
            view = view_source(tensor, int(tensor.storage_offset()))
            text = memories[name] + view
        grad = ".requires_grad_()" if tensor.requires_grad else ""
        lines.append(f"{name} = {text}{grad}")
        lines += [
            f"torch._dynamo.maybe_mark_dynamic({name}, {dimension})"
            for dimension in node.meta.get("dynamic", ())
        ]
    returned = "".join(f"{name}, " for name in inputs).strip()
    lines.append(f"return ({returned})")
    return "def arguments():\n" + "".join(f"    {line}\n" for line in lines)


def _shared_memory(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Groups inputs that are views of the same memory."""
    keys = {
        name: (tensor.untyped_storage().data_ptr(), tensor.dtype)
        for name, tensor in tensors.items()
        if tensor.numel()
    }
    counts = Counter(keys.values())
    shared = [key for key, count in counts.items() if count > 1]
    return {
        f"memory{at}": [name for name, other in keys.items() if other == key]
        for at, key in enumerate(shared)
    }


def _tensor(name: str, tensor: Tensor, files: Mapping[str, str]) -> str:
    if name not in files:
        return tensor_source(tensor)
    device = "" if tensor.device.type == "cpu" else f", {str(tensor.device)!r}"
    loaded = f"recorded({files[name]!r}{device})"
    dense = tensor.is_contiguous() or not tensor.numel()
    return loaded if dense else loaded + view_source(tensor)
