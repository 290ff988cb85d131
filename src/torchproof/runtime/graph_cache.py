"""A cache of graphs that were compiled in the background.

The model may change between a background compilation and the call that uses it. So that
call is traced again, and its graph is looked up here by a key of everything the
compiled code depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from torchproof.torch_private import global_switches

_MOST_GRAPHS = 64


@dataclass(frozen=True)
class CachedGraph:
    """A compiled graph; `graph` keeps alive the objects that its key names by id."""

    name: str
    compiled: Callable[..., Any]
    changed: list[int] | None
    graph: fx.GraphModule


class GraphCache:
    """The latest compiled graphs by key; the key None is never stored."""

    def __init__(self) -> None:
        self._items: dict[Hashable, CachedGraph] = {}
        self._is_closed = False

    def put(self, key: Hashable, item: CachedGraph) -> None:
        if key is not None and not self._is_closed:
            self._items[key] = item
            for oldest in list(self._items)[:-_MOST_GRAPHS]:
                self._items.pop(oldest, None)

    def get(self, key: Hashable) -> CachedGraph | None:
        return None if key is None else self._items.get(key)

    def close(self) -> None:
        """Frees the graphs, and stores no others: the model was deleted."""
        self._is_closed = True
        self._items.clear()


def key_of(gm: fx.GraphModule) -> Hashable:
    """Everything that compiled code depends on; None for a graph with dynamic sizes.

    Compiling such a graph can restrict its sizes, and only the guards of that
    conversion contain the restriction.
    """
    inputs = [n.meta.get("example_value") for n in gm.graph.nodes if _is_input(n)]
    if any(value is None or _varies(value) for value in inputs):
        return None
    parts: list[Hashable] = [_modes(), *_layouts(inputs)]
    for name, module in gm.named_modules():
        if not isinstance(module, fx.GraphModule):
            return None  # the graph does not show this module's code
        parts += [name, str(module.graph), *_targets(module)]
    return tuple(parts)


def _is_input(node: fx.Node) -> bool:
    return node.op == "placeholder"


def _varies(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _layouts(inputs: list[Any]) -> Iterator[Hashable]:
    """The layout of each input, and which inputs share memory."""
    storages: dict[int, int] = {}
    for value in inputs:
        if not isinstance(value, Tensor):
            yield repr(value)
            continue
        storage = value.untyped_storage()._cdata
        yield (
            type(value),
            value.dtype,
            value.device,
            tuple(value.shape),
            value.stride(),
            value.requires_grad,
            value.is_leaf,
            value.storage_offset(),
            storages.setdefault(storage, len(storages)),
        )


def _targets(module: fx.GraphModule) -> Iterator[int]:
    """The ids of functions and attributes: another graph may use the same names."""
    for node in module.graph.nodes:
        if node.op == "call_function":
            yield id(node.target)
        elif node.op == "get_attr":
            value: Any = module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            yield id(value)


def _modes() -> Hashable:
    devices = ("cpu", "cuda")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *(torch.is_autocast_enabled(device) for device in devices),
        *(torch.get_autocast_dtype(device) for device in devices),
        torch.are_deterministic_algorithms_enabled(),
        global_switches.read_precision(),
    )
