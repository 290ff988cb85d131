"""The way to a live tensor, as a programmer would write it."""

from __future__ import annotations

import collections
import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchproof.observe.audit.referrers import Referrer, referrer_of, sharing
from torchproof.torch_private import cudagraph_trees

KEPT: dict[str, Any] = {}


class Slotted:
    __slots__ = ("scores",)


class Plain:
    pass


@dataclasses.dataclass
class Record:
    number: int
    scores: torch.Tensor


def holder_of(tensor: torch.Tensor) -> Referrer | None:
    """The holder of a tensor's memory; the caller's own name for it is deleted."""
    key = cudagraph_trees.memory_key(tensor)
    assert key is not None
    del tensor
    return referrer_of(sharing([key])[key])


def path_to(tensor: torch.Tensor) -> str | None:
    key = cudagraph_trees.memory_key(tensor)
    assert key is not None
    del tensor
    holder = referrer_of(sharing([key])[key])
    return holder.path if holder else None


def memory() -> Any:
    return torch.ones(3)


def closed() -> Any:
    best = memory()
    return lambda: best


def waiting() -> Iterator[int]:
    state = memory()
    yield 1
    assert state is not None


@pytest.mark.usefixtures("small_heap")
def test_holder_is_named_as_the_program_names_it() -> None:
    kept = memory()
    holder = holder_of(kept)
    assert holder is not None and holder.path == "kept" and holder.is_variable
    outs, pair = [memory(), memory()], (memory(), memory())
    queue = collections.deque([memory()])
    for index, each in enumerate(outs):  # the container before a loop variable
        assert path_to(each) == f"outs[{index}]"
    assert path_to(pair[1]) == "pair[1]" and path_to(queue[0]) == "queue[0]"
    session: Any = Plain()
    session.history = {"x": [None, memory()]}
    assert path_to(session.history["x"][1]) == "session.history['x'][1]"
    slotted, record = Slotted(), Record(1, memory())
    slotted.scores = memory()
    assert path_to(slotted.scores) == "slotted.scores"
    assert path_to(record.scores) == "record.scores"
    function, paused = closed(), waiting()
    assert path_to(function()) == "best"
    next(paused)
    assert path_to(paused.gi_frame.f_locals["state"]) == "state"  # type: ignore[attr-defined]
    assert path_to(memory()) is None


@pytest.mark.usefixtures("small_heap")
def test_views_and_gradients_hold_the_memory_of_their_base() -> None:
    base = memory()
    rows = {"first": base[:1]}
    key = cudagraph_trees.memory_key(base)
    del base
    assert key is not None
    found = referrer_of(sharing([key])[key])
    assert found is not None and found.path == "rows['first']" and rows
    loss = memory()
    losses = [loss.detach()]
    assert path_to(loss) == "losses[0]" and losses
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.ones(1, 2)).sum().backward()
    gradient = net[0].weight.grad
    assert gradient is not None and optimizer
    key = cudagraph_trees.memory_key(gradient)
    del gradient
    assert key is not None
    found = referrer_of(sharing([key])[key])
    assert found is not None and found.path == "net.0.weight.grad"


def test_a_global_among_all_objects_of_the_process() -> None:
    KEPT["scores"] = memory()
    try:
        assert path_to(KEPT["scores"]) == "KEPT['scores']"
    finally:
        KEPT.clear()


@pytest.mark.usefixtures("small_heap")
def test_searching_keeps_no_tensor_and_no_frame_alive() -> None:
    """A frame that is kept keeps all its variables, and those of its callers."""
    kept = memory()
    reference = cudagraph_trees.Memory(kept)
    assert path_to(kept) == "kept"
    kept = None
    assert not reference.alive

    def search() -> cudagraph_trees.Memory:
        variable, held = memory(), [memory()]
        assert path_to(held[0]) == "held[0]"
        return cudagraph_trees.Memory(variable)

    gc.disable()
    try:
        assert not search().alive
    finally:
        gc.enable()
