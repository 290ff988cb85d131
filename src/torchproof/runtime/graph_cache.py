"""Compiled graphs at hand: the same graph need not be compiled a second time.

What is compiled behind the calls of a model is of use only for the graph that a call
would have now, whatever was changed in the model meanwhile: so that is traced again,
and its compiled code is looked up here by all that the code depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

_KEPT = 64  # graphs


@dataclass(frozen=True)
class CachedGraph:
    """`graph` keeps alive what its key names by identity."""

    name: str
    compiled: Callable[..., Any]
    changed: list[int] | None
    graph: fx.GraphModule


class GraphCache:
    """The graphs that were compiled last; None as a key is never found."""

    def __init__(self) -> None:
        self._items: dict[Hashable, CachedGraph] = {}

    def put(self, key: Hashable, item: CachedGraph) -> None:
        if key is not None:
            self._items[key] = item
            for oldest in list(self._items)[:-_KEPT]:
                self._items.pop(oldest, None)

    def get(self, key: Hashable) -> CachedGraph | None:
        return None if key is None else self._items.get(key)

    def clear(self) -> None:
        self._items.clear()


def key_of(gm: fx.GraphModule) -> Hashable:
    """All that compiled code depends on; None for a graph of sizes that vary.

    Compiling such a graph can limit the sizes that it is for, which only the guards of
    that very conversion know of.
    """
    inputs = [n.meta.get("example_value") for n in gm.graph.nodes if _is_input(n)]
    if any(value is None or _varies(value) for value in inputs):
        return None
    parts: list[Hashable] = [_modes(), *_layouts(inputs)]
    for name, module in gm.named_modules():
        if not isinstance(module, fx.GraphModule):
            return None  # whose code the graph does not show
        parts += [name, str(module.graph), *_targets(module)]
    return tuple(parts)


def _is_input(node: fx.Node) -> bool:
    return node.op == "placeholder"


def _varies(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _layouts(inputs: list[Any]) -> Iterator[Hashable]:
    """Of each input; of those that share memory, with which it does."""
    storages: dict[int, int] = {}
    for value in inputs:
        if not isinstance(value, Tensor):
            yield repr(value)
            continue
        storage = value.untyped_storage()._cdata
        yield (
            type(value),
            *(value.dtype, value.device, tuple(value.shape), value.stride()),
            *(value.requires_grad, value.is_leaf, value.storage_offset()),
            storages.setdefault(storage, len(storages)),
        )


def _targets(module: fx.GraphModule) -> Iterator[int]:
    """What a graph refers to by a name that others may have too."""
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
        torch.get_float32_matmul_precision(),
    )
