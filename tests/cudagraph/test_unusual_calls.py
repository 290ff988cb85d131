"""Calls that a graph cannot take: the answer, or the error, is that of the step."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchproof


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Any = None) -> Any:
        return None if x is None else self.inner(x)


def outcome(step: Callable[..., Any], *args: Any) -> Any:
    """The answer, or the kind of error."""
    try:
        with torch.no_grad():
            return step(*args)
    except Exception as error:
        return type(error)


def assert_same(given: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(given, expected)
    else:
        assert given == expected


CALLS: dict[str, tuple[Any, ...]] = {
    "empty batch": (torch.ones(0, 4),),
    "no dimensions": (torch.tensor(1.0),),
    "one dimension": (torch.ones(4),),
    "too many dimensions": (torch.ones(2, 3, 4),),
    "wrong width": (torch.ones(2, 5),),
    "None": (None,),
    "nothing": (),
    "a number": (3,),
    "a list": ([1.0, 2.0],),
    "larger than all buckets": (torch.ones(9, 4),),
    "other type": (torch.ones(2, 4, dtype=torch.int64),),
    "needs a gradient": (torch.ones(2, 4, requires_grad=True),),
    "sparse": (torch.ones(2, 4).to_sparse(),),
}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_the_outcome_is_that_of_eager(name: str, padded: bool) -> None:
    model, call = Rows().eval(), CALLS[name]
    settings: Any = {"pad": {"x": ("batch",)}, "buckets": [4, 8]} if padded else {}
    graphed = torchproof.graph(model, **settings)
    x = torch.randn(3, 4)
    assert_same(outcome(graphed, x), outcome(model, x))
    for _ in range(2):
        assert_same(outcome(graphed, *call), outcome(model, *call))
    assert_same(outcome(graphed, x), outcome(model, x))
    assert graphed.status().replays >= 2


# -- arguments that carry more than their tensors --------------------------------------


class Batch(dict):  # type: ignore[type-arg]
    mode = 1.0


class Unhashable:
    def __hash__(self) -> int:
        raise RuntimeError("not to be hashed")


class Alike:
    """Equal to all of its kind, whatever it holds."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float


def scaled(x: Tensor, by: Any) -> Tensor:
    return x * getattr(by, "scale", 2.0)


X = torch.ones(3)


def test_equal_arguments_with_other_contents() -> None:
    graphed = torchproof.graph(scaled)
    for by in (Alike(2.0), Alike(3.0), Unhashable()):
        assert_same(graphed(X, by), scaled(X, by))
    assert graphed.status().replays == 0
    assert {stop.kind for stop in graphed.status().stops} == {"input"}


def test_frozen_arguments_count_by_value() -> None:
    graphed = torchproof.graph(scaled)
    for by in (Frozen(0.0), Frozen(-0.0), Frozen(2.0), Frozen(0.0)):
        assert_same(1 / graphed(X, by), 1 / scaled(X, by))
    status = graphed.status()
    assert (status.recordings, status.replays) == (3, 4)


def test_the_sign_of_zero() -> None:
    graphed = torchproof.graph(lambda x, k: 1 / (x * k))
    for k in (0.0, -0.0):
        assert graphed(X, k).tolist() == (1 / (X * k)).tolist()


def test_attributes_of_arguments() -> None:
    def step(batch: Any) -> Tensor:
        return batch["x"] * batch.mode

    graphed = torchproof.graph(step)
    batch = Batch(x=X)
    assert_same(graphed(batch), step(batch))
    assert graphed.status().replays == 1
    batch.mode = 3.0
    assert_same(graphed(batch), step(batch))
    batch.mode = 4.0
    assert_same(graphed(batch), step(batch))


def test_attributes_of_tensors_that_are_passed() -> None:
    def step(x: Tensor) -> Tensor:
        return x * getattr(x, "scale", 1.0)

    graphed = torchproof.graph(step)
    x = torch.ones(3)
    assert_same(graphed(x), step(x))
    x.scale = 2.0  # type: ignore[attr-defined]
    assert_same(graphed(x), step(x))
    x.scale = 3.0  # type: ignore[attr-defined]
    assert_same(graphed(x), step(x))


def test_marks_for_sizes_are_no_matter() -> None:
    x = torch.ones(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    graphed = torchproof.graph(nn.Linear(4, 2).eval())
    for _ in range(2):
        graphed(x)
    assert graphed.status().replays == 2


def test_a_function_that_is_passed_is_watched() -> None:
    class Config:
        scale = 2.0

    def times(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k * Config.scale

    def step(x: Tensor, function: Callable[..., Tensor]) -> Tensor:
        return function(x)

    graphed = torchproof.graph(step)
    assert_same(graphed(X, times), step(X, times))
    Config.scale = 5.0
    assert_same(graphed(X, times), step(X, times))
    times.__defaults__ = (7.0,)
    assert_same(graphed(X, times), step(X, times))


# -- what overrides torch --------------------------------------------------------------


class Negated(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        return -answer if func is torch.relu else answer


class Noting(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return func(*args, **(kwargs or {}))


def test_modes_see_the_step_itself() -> None:
    graphed = torchproof.graph(lambda x: torch.relu(x))
    assert graphed(X).tolist() == [1.0] * 3
    with Negated():
        assert graphed(X).tolist() == [-1.0] * 3
    with Noting() as mode:
        graphed(X)
    assert mode.count >= 1
    assert graphed(X).tolist() == [1.0] * 3
    assert (graphed.status().replays, graphed.status().plain_calls) == (2, 2)


def test_a_step_that_fails_only_when_it_is_watched() -> None:
    known = X

    def step(x: Tensor) -> Tensor:
        if x is not known:  # a recording has memory of its own
            raise RuntimeError("a stranger")
        return x * 2

    graphed = torchproof.graph(step, (X,))
    for _ in range(2):
        assert graphed(X).tolist() == [2.0] * 3
    (stop,) = graphed.status().stops
    assert stop.kind == "capture" and "a stranger" in stop.reason


def test_an_ordered_dict_keeps_its_order() -> None:
    def step(batch: Any) -> Tensor:
        return next(iter(batch.values())) * 1

    graphed = torchproof.graph(step)
    one = collections.OrderedDict(a=X, b=X * 2)
    assert_same(graphed(one), step(one))
    one.move_to_end("a")
    assert_same(graphed(one), step(one))
