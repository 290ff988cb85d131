"""Reads an FX graph of Dynamo into the graph IR while the graph runs once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from torchproof.packs.repro.graphs import tensor_stats
from torchproof.packs.repro.graphs.expressions import (
    Namer,
    NotPortable,
    expression,
    has_effect,
    stem,
)
from torchproof.packs.repro.graphs.graph_ir import Function, GraphIR, Input, Line, Role

# How Dynamo names tensors that belong to a module or to `self`.
_OWNED = re.compile(r"_(parameters|buffers|modules)_|^L_self_")
_COMPUTED = ("call_function", "call_method", "call_module")


@dataclass
class Reader:
    """Reads one graph: its inputs and lines, then the values of its first run."""

    gm: fx.GraphModule
    namer: Namer = field(default_factory=Namer)
    names: dict[fx.Node, str] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    contexts: tuple[str, ...] = ()
    _positions: dict[str, int] = field(default_factory=dict)

    def graph_ir(self) -> GraphIR:
        """Returns the graph IR, with the values that have been computed so far."""
        (output,) = [node for node in self.gm.graph.nodes if node.op == "output"]
        returned = output.args[0]
        nodes = returned if isinstance(returned, tuple | list) else (returned,)
        outputs = [self.names[node] for node in nodes if isinstance(node, fx.Node)]
        return GraphIR(
            inputs=tuple(self.inputs),
            lines=tuple(self.lines),
            outputs=tuple(dict.fromkeys(outputs)) or ("None",),
            functions=tuple(self.functions),
            contexts=self.contexts,
        )

    def read_inputs(self, args: Sequence[Any]) -> None:
        """Reads placeholders with their values in this call, then constants."""
        self.contexts = active_contexts()
        nodes = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        values = list(zip(nodes, args, strict=True))
        for node, value in values:
            if _is_wrapped_number(node, value):
                self.names |= {user: repr(value.item()) for user in node.users}
            elif isinstance(value, Tensor):
                self._add(node, value, _role(node, value))
        for node, value in values:
            if not isinstance(value, Tensor):
                self.names[node] = self._size(node, value)
        for node in self.gm.graph.nodes:
            if node.op == "get_attr":
                self._read_attribute(node)
        self._mark_shared_storage(tensors_of(self.gm, args))

    def read_lines(self) -> None:
        for node in self.gm.graph.nodes:
            if node.op in _COMPUTED and node not in self.names:
                self.lines.append(_line(node, self.names, self.namer))
                self._positions[self.names[node]] = len(self.lines) - 1

    def record_value(self, node: fx.Node, value: Any) -> None:
        """Stores the value of a node that has run."""
        position = self._positions.get(self.names.get(node, ""))
        if position is None:
            return
        if isinstance(value, Tensor) and tensor_stats.is_plain(value):
            line = replace(self.lines[position], facts=tensor_stats.facts(value))
        elif isinstance(value, Tensor):  # facts cannot describe it
            line = replace(self.lines[position], facts=None)
        elif isinstance(value, bool | int | float):
            line = replace(self.lines[position], literal=repr(value))
        else:
            return
        self.lines[position] = line

    def _add(self, node: fx.Node, value: Tensor, role: Role) -> None:
        letter = {"input": "x", "weight": "w", "buffer": "b"}[role]
        count = sum(entry.role == role for entry in self.inputs)
        name = self.namer(f"{letter}{count}")
        self.names[node] = name
        traced = node.meta.get("example_value")
        dynamic: tuple[int, ...] = ()
        if isinstance(traced, Tensor) and role == "input":
            sizes = enumerate(traced.shape)
            dynamic = tuple(at for at, size in sizes if type(size) is not int)
        self.inputs.append(Input(name, tensor_stats.facts(value), role, dynamic))

    def _size(self, node: fx.Node, value: Any) -> str:
        """Returns a number input as the size of a tensor input, if it is one."""
        symbol = node.meta.get("example_value")
        if isinstance(symbol, torch.SymInt):
            for other, name in self.names.items():
                traced = other.meta.get("example_value")
                sizes = traced.shape if isinstance(traced, Tensor) else ()
                for at, size in enumerate(sizes):
                    if type(size) is not int and str(size) == str(symbol):
                        return f"{name}.shape[{at}]"
        if isinstance(value, bool | int | float):
            return repr(value)
        raise NotPortable(f"one of its inputs is of type {type(value).__name__}")

    def _read_attribute(self, node: fx.Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, Tensor):
            self._add(node, value, _role(node, value, attribute=True))
            return
        if not isinstance(value, fx.GraphModule):
            raise NotPortable(f"it contains an object of type {type(value).__name__}")
        self.names[node] = self._read_function(node, value)

    def _read_function(self, holder: fx.Node, gm: fx.GraphModule) -> str:
        users = {stem(user) for user in holder.users}
        region = "torch.compiler.nested_compile_region"
        name = self.namer("region" if "invoke_subgraph" in users else "part")
        names: dict[fx.Node, str] = {}
        parameters = []
        lines = []
        result = "None"
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                names[node] = self.namer("a")
                parameters.append(names[node])
            elif node.op == "get_attr":
                inner = getattr(gm, str(node.target))
                if not isinstance(inner, fx.GraphModule):
                    raise NotPortable("one of its subgraphs contains a constant")
                names[node] = self._read_function(node, inner)
            elif node.op == "output":
                result = _result(node.args[0], names)
            else:
                lines.append(_line(node, names, self.namer))
        decorator = region if "invoke_subgraph" in users else ""
        self.functions.append(
            Function(name, tuple(parameters), tuple(lines), result, decorator)
        )
        return name

    def _mark_shared_storage(self, tensors: list[Tensor]) -> None:
        """Gives inputs with the same memory and role a common `storage`."""
        keys = [
            (value.untyped_storage().data_ptr(), value.dtype, entry.role == "input")
            for value, entry in zip(tensors, self.inputs, strict=False)
        ]
        counts = Counter(key for key in keys if key[0])
        shared = {key: self.namer("memory") for key in keys if counts[key] > 1}
        for at, key in enumerate(keys):
            if key in shared:
                self.inputs[at] = replace(
                    self.inputs[at],
                    storage=shared[key],
                    offset=int(tensors[at].storage_offset()),
                )


class RecordingInterpreter(fx.Interpreter):
    """Runs the graph and passes the value of each node to its reader."""

    def __init__(self, gm: fx.GraphModule, reader: Reader) -> None:
        super().__init__(gm)
        self._nodes = {node.name: node for node in reader.gm.graph.nodes}
        self._reader = reader

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self._reader.record_value(self._nodes[n.name], value)
        return value


def active_contexts() -> tuple[str, ...]:
    """Returns the grad mode and autocast around the graph, as decorators."""
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


def tensors_of(gm: fx.GraphModule, args: Sequence[Any]) -> list[Tensor]:
    """Returns the tensors of a call that become inputs of the IR, in order."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [
        value
        for node, value in zip(nodes, args, strict=True)
        if isinstance(value, Tensor) and not _is_wrapped_number(node, value)
    ]


def _is_wrapped_number(node: fx.Node, value: Any) -> bool:
    """Whether a tensor is a Python float that Dynamo has wrapped."""
    if not isinstance(value, Tensor) or value.shape or value.dtype != torch.float64:
        return False
    users = [(user.op, user.target) for user in node.users]
    return bool(users) and set(users) == {("call_method", "item")}


def _role(node: fx.Node, value: Tensor, *, attribute: bool = False) -> Role:
    if isinstance(value, torch.nn.Parameter):
        return "weight"
    owned = attribute or _OWNED.search(str(node.target)) is not None
    return "buffer" if owned else "input"


def _line(node: fx.Node, names: dict[fx.Node, str], namer: Namer) -> Line:
    if node.op == "call_module":
        raise NotPortable("it calls a module as one operation")
    text = expression(node, names)
    names[node] = namer(stem(node).lower())
    traced = tensor_stats.traced_facts(node.meta.get("example_value"))
    return Line(names[node], text, traced, has_effect=has_effect(node))


def _result(value: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, tuple | list):
        inner = ", ".join(_result(part, names) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)
