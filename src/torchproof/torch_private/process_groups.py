"""The process group of a distributed run, and the collectives in captured graphs."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, fx

from torchproof.process import forks
from torchproof.torch_private import contract

FEATURE = "decisions of several ranks"
# Operators of functional collectives, which Dynamo also traces `all_reduce` as.
_COLLECTIVES = ("_c10d_functional", "c10d", "_dtensor")
_WAIT = "wait_tensor"


@dataclass(frozen=True)
class ProcessGroup:
    """The default group; `store` is a `Connection`, and so blocks nobody."""

    store: Any
    rank: int
    world_size: int
    timeout_s: float | None  # of collectives; None if it is unknown

    @property
    def others(self) -> frozenset[int]:
        return frozenset(range(self.world_size)) - {self.rank}


class Connection:
    """The default store, over a connection of its own that is made at its first use.

    Connecting may take as long as the store's timeout, and may fail. The store itself
    is not kept: a program may close its group and open another one at the same port.
    """

    def __init__(self, store: Any) -> None:
        self._original = weakref.ref(store)
        self._lock = forks.lock()
        self._clone: Any = None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._clone is None:
                store = self._original()
                if store is None:
                    raise RuntimeError("the process group was closed")
                self._clone = store.clone()
        return getattr(self._clone, name)


_connections: weakref.WeakKeyDictionary[Any, Connection] = weakref.WeakKeyDictionary()


def is_open() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return distributed.get_world_size() if is_open() else 1


def default_group() -> ProcessGroup | None:
    """The default group, if it has several ranks and the installed torch shows it."""
    if not is_open():
        return None
    size = distributed.get_world_size()
    # A fake group has no other ranks; since torch 2.15 its store looks like a real one.
    if size < 2 or distributed.get_backend() == "fake" or contract.missing(FEATURE):
        return None
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    store = c10d._get_default_store()
    connection = _connections.setdefault(store, Connection(store))
    return ProcessGroup(connection, distributed.get_rank(), size, _timeout_s())


def _timeout_s() -> float | None:
    group: Any = distributed.group.WORLD
    for device in ("cuda", "cpu"):
        try:
            options = group._get_backend(torch.device(device)).options
        except (RuntimeError, AttributeError):  # no backend for this device
            continue
        if options is not None:
            return float(options._timeout.total_seconds())
    return None


def compiling_runs_collectives() -> bool:
    """Whether compiler collectives or guard collectives are switched on."""
    config = importlib.import_module("torch._dynamo.config")
    if config.enable_compiler_collectives:
        return True
    eval_frame = importlib.import_module("torch._C._dynamo.eval_frame")
    # There is no getter: setting a hook returns the previous one.
    hook = eval_frame.set_guard_complete_hook(None)
    eval_frame.set_guard_complete_hook(hook)
    return (
        hook
        is importlib.import_module("torch._dynamo.eval_frame").guard_collectives_hook
    )


def groups_in_graph(gm: fx.GraphModule) -> frozenset[frozenset[int]]:
    """The ranks of each group whose collectives a captured graph contains."""
    graphs = (part for part in gm.modules() if isinstance(part, fx.GraphModule))
    nodes = (node for part in graphs for node in part.graph.nodes)
    return frozenset(
        frozenset(ranks) for node in nodes for ranks in _groups_of(node) if ranks
    )


def _groups_of(node: fx.Node) -> Iterator[list[int]]:
    value = node.meta.get("example_value")
    if (mesh := getattr(value, "device_mesh", None)) is not None:
        # Operations on distributed tensors become collectives in AOTAutograd.
        yield mesh.mesh.flatten().tolist()
    target = str(node.target)
    if node.op != "call_function" or not target.startswith(_COLLECTIVES):
        return
    if _WAIT not in target:
        yield _ranks_of_group([*node.args, *node.kwargs.values()])


def _ranks_of_group(arguments: list[Any]) -> list[int]:
    """The ranks of the group that an argument names; all ranks if none does."""
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    for argument in reversed(arguments):
        if isinstance(argument, str):
            try:
                group = c10d._resolve_process_group(argument)
            except (RuntimeError, ValueError):  # the name of a reduction
                continue
            return list(distributed.get_process_group_ranks(group))
    return list(range(distributed.get_world_size()))
