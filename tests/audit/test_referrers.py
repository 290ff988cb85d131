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


def found(tensor: torch.Tensor) -> Referrer | None:
    """The holder of a tensor's memory; the caller's own name for it is deleted."""
    key = cudagraph_trees.memory_key(tensor)
    assert key is not None
    del tensor
    return referrer_of(sharing([key])[key])


def memory() -> Any:
    return torch.ones(3)


def path_of(holder: Referrer | None) -> str | None:
    return holder.path if holder else None


def test_a_variable() -> None:
    kept = memory()
    holder = found(kept)
    assert holder is not None and holder.path == "kept" and holder.is_variable


def test_a_container_before_a_loop_variable() -> None:
    outs = [memory(), memory()]
    for index, each in enumerate(outs):
        assert path_of(found(each)) == f"outs[{index}]"


@pytest.mark.parametrize("kind", [list, tuple, collections.deque])
def test_sequences(kind: Any) -> None:
    history = kind([memory(), memory()])
    assert path_of(found(history[1])) == "history[1]"


def test_dictionaries_in_objects() -> None:
    session = Plain()
    session.history = {"x": [None, memory()]}  # type: ignore[attr-defined]
    assert path_of(found(session.history["x"][1])) == "session.history['x'][1]"  # type: ignore[attr-defined]


def test_slots_and_records() -> None:
    slotted = Slotted()
    slotted.scores = memory()
    record = Record(1, memory())
    assert path_of(found(slotted.scores)) == "slotted.scores"
    assert path_of(found(record.scores)) == "record.scores"


def test_a_view_is_held_in_place_of_its_base() -> None:
    base = memory()
    rows = {"first": base[:1]}
    key = cudagraph_trees.memory_key(base)
    del base
    assert key is not None
    assert path_of(referrer_of(sharing([key])[key])) == "rows['first']"
    assert rows


def test_a_container_of_a_view_before_a_variable_of_the_base() -> None:
    loss = memory()
    losses = [loss.detach()]
    assert path_of(found(loss)) == "losses[0]"
    assert losses


def test_a_gradient_and_a_parameter_by_its_module() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.ones(1, 2)).sum().backward()
    gradient = net[0].weight.grad
    assert gradient is not None and optimizer
    key = cudagraph_trees.memory_key(gradient)
    del gradient
    assert key is not None
    assert path_of(referrer_of(sharing([key])[key])) == "net.0.weight.grad"


def test_a_global() -> None:
    KEPT["scores"] = memory()
    try:
        assert path_of(found(KEPT["scores"])) == "KEPT['scores']"
    finally:
        KEPT.clear()


def closed() -> Any:
    best = memory()
    return lambda: best


def test_a_variable_of_a_closure() -> None:
    function = closed()
    assert path_of(found(function())) == "best"


def waiting() -> Iterator[int]:
    state = memory()
    yield 1
    assert state is not None


def test_a_variable_of_a_generator_that_waits() -> None:
    paused = waiting()
    next(paused)
    frame = paused.gi_frame  # type: ignore[attr-defined]
    assert path_of(found(frame.f_locals["state"])) == "state"


def test_nobody() -> None:
    assert found(memory()) is None


def test_reading_names_keeps_nothing_alive() -> None:
    kept = memory()
    reference = cudagraph_trees.Memory(kept)
    assert path_of(found(kept)) == "kept"
    kept = None
    assert not reference.alive


def test_searching_keeps_no_frame_alive() -> None:
    """A frame that is kept keeps all its variables, and those of its callers."""

    def search() -> cudagraph_trees.Memory:
        variable, kept = memory(), [memory()]
        assert path_of(found(kept[0])) == "kept[0]"
        return cudagraph_trees.Memory(variable)

    gc.disable()
    try:
        assert not search().alive
    finally:
        gc.enable()
