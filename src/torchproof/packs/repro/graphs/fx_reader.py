"""An FX graph that Dynamo captured, read into a graph while it runs once."""

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
    acts,
    expression,
    stem,
)
from torchproof.packs.repro.graphs.graph_ir import Function, GraphIR, Input, Line, Role

# How Dynamo names what it finds inside a module, and what belongs to `self`.
_OWNED = re.compile(r"_(parameters|buffers|modules)_|^L_self_")
_COMPUTED = ("call_function", "call_method", "call_module")


@dataclass
class Reader:
    """Reads one graph; `run` is the graph's first run, node by node."""

    gm: fx.GraphModule
    namer: Namer = field(default_factory=Namer)
    names: dict[fx.Node, str] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    under: tuple[str, ...] = ()
    _places: dict[str, int] = field(default_factory=dict)

    def graph_ir(self) -> GraphIR:
        """What was read, as far as the graph has run."""
        (output,) = [node for node in self.gm.graph.nodes if node.op == "output"]
        found = output.args[0]
        listed = found if isinstance(found, tuple | list) else (found,)
        outputs = [self.names[node] for node in listed if isinstance(node, fx.Node)]
        return GraphIR(
            inputs=tuple(self.inputs),
            lines=tuple(self.lines),
            outputs=tuple(dict.fromkeys(outputs)) or ("None",),
            functions=tuple(self.functions),
            under=self.under,
        )

    def read_inputs(self, args: Sequence[Any]) -> None:
        """The placeholders with what they stand for in this call, then constants."""
        self.under = surroundings()
        nodes = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        given = list(zip(nodes, args, strict=True))
        for node, value in given:
            if _is_wrapped_number(node, value):
                self.names |= {user: repr(value.item()) for user in node.users}
            elif isinstance(value, Tensor):
                self._add(node, value, _role(node, value))
        for node, value in given:
            if not isinstance(value, Tensor):
                self.names[node] = self._size(node, value)
        for node in self.gm.graph.nodes:
            if node.op == "get_attr":
                self._read_attribute(node)
        self._share(tensors_of(self.gm, args))

    def read_lines(self) -> None:
        for node in self.gm.graph.nodes:
            if node.op in _COMPUTED and node not in self.names:
                self.lines.append(_line(node, self.names, self.namer))
                self._places[self.names[node]] = len(self.lines) - 1

    def saw(self, node: fx.Node, value: Any) -> None:
        """A node of the graph has run."""
        place = self._places.get(self.names.get(node, ""))
        if place is None:
            return
        if isinstance(value, Tensor) and tensor_stats.is_plain(value):
            told = replace(self.lines[place], facts=tensor_stats.facts(value))
        elif isinstance(value, Tensor):  # no tensor to be made from facts
            told = replace(self.lines[place], facts=None)
        elif isinstance(value, bool | int | float):
            told = replace(self.lines[place], literal=repr(value))
        else:
            return
        self.lines[place] = told

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
        """A number that goes in: a size of a tensor beside it, if it is one."""
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
        raise NotPortable(f"one of its inputs is of the type {type(value).__name__}")

    def _read_attribute(self, node: fx.Node) -> None:
        found: Any = self.gm
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, Tensor):
            self._add(node, found, _role(node, found, attribute=True))
            return
        if not isinstance(found, fx.GraphModule):
            raise NotPortable(f"it holds an object of the type {type(found).__name__}")
        self.names[node] = self._read_function(node, found)

    def _read_function(self, holder: fx.Node, gm: fx.GraphModule) -> str:
        users = {stem(user) for user in holder.users}
        region = "torch.compiler.nested_compile_region"
        name = self.namer("region" if "invoke_subgraph" in users else "part")
        known: dict[fx.Node, str] = {}
        parameters, lines, result = [], [], "None"
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                known[node] = self.namer("a")
                parameters.append(known[node])
            elif node.op == "get_attr":
                inner = getattr(gm, str(node.target))
                if not isinstance(inner, fx.GraphModule):
                    raise NotPortable("a graph inside it holds a constant")
                known[node] = self._read_function(node, inner)
            elif node.op == "output":
                result = _result(node.args[0], known)
            else:
                lines.append(_line(node, known, self.namer))
        decorator = region if "invoke_subgraph" in users else ""
        self.functions.append(
            Function(name, tuple(parameters), tuple(lines), result, decorator)
        )
        return name

    def _share(self, tensors: list[Tensor]) -> None:
        """Inputs of the same memory and role say so."""
        keys = [
            (value.untyped_storage().data_ptr(), value.dtype, entry.role == "input")
            for value, entry in zip(tensors, self.inputs, strict=False)
        ]
        often = Counter(key for key in keys if key[0])
        shared = {key: self.namer("memory") for key in keys if often[key] > 1}
        for at, key in enumerate(keys):
            if key in shared:
                self.inputs[at] = replace(
                    self.inputs[at],
                    storage=shared[key],
                    offset=int(tensors[at].storage_offset()),
                )


class Run(fx.Interpreter):
    """One run of the graph, told to its reader."""

    def __init__(self, gm: fx.GraphModule, reader: Reader) -> None:
        super().__init__(gm)
        self._named = {node.name: node for node in reader.gm.graph.nodes}
        self._reader = reader

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self._reader.saw(self._named[n.name], value)
        return value


def surroundings() -> tuple[str, ...]:
    """What a graph is called under and does not set itself, as decorators."""
    found = []
    if torch.is_inference_mode_enabled():
        found.append("torch.inference_mode()")
    elif not torch.is_grad_enabled():
        found.append("torch.no_grad()")
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            found.append(f'torch.autocast("{device}", dtype={dtype})')
    return tuple(found)


def tensors_of(gm: fx.GraphModule, args: Sequence[Any]) -> list[Tensor]:
    """The tensors of a call that become inputs of a graph, in their order."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [
        value
        for node, value in zip(nodes, args, strict=True)
        if isinstance(value, Tensor) and not _is_wrapped_number(node, value)
    ]


def _is_wrapped_number(node: fx.Node, value: Any) -> bool:
    """Whether it is a Python float that Dynamo carries in a tensor."""
    if not isinstance(value, Tensor) or value.shape or value.dtype != torch.float64:
        return False
    users = [(user.op, user.target) for user in node.users]
    return bool(users) and set(users) == {("call_method", "item")}


def _role(node: fx.Node, value: Tensor, *, attribute: bool = False) -> Role:
    if isinstance(value, torch.nn.Parameter):
        return "weight"
    owned = attribute or _OWNED.search(str(node.target)) is not None
    return "buffer" if owned else "input"


def _line(node: fx.Node, known: dict[fx.Node, str], namer: Namer) -> Line:
    if node.op == "call_module":
        raise NotPortable("it calls modules as a whole")
    text = expression(node, known)
    known[node] = namer(stem(node).lower())
    traced = tensor_stats.imagined(node.meta.get("example_value"))
    return Line(known[node], text, traced, acts=acts(node))


def _result(value: Any, known: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return known[value]
    if isinstance(value, tuple | list):
        inner = ", ".join(_result(part, known) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)
