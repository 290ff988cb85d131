"""The quick check before a replay: it sees every change, and spares the exact one."""

from __future__ import annotations

import collections
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchproof.runtime.cudagraph import quick_check
from torchproof.runtime.cudagraph.executed_code import Execution
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.torch_private.tensor_layouts import same_layouts

RATE = ContextVar("RATE", default=1.0)
SCALE: Any = 2.0
OTHER: Any = None


class Slotted:
    __slots__ = ("power",)

    def __init__(self) -> None:
        self.power = 1.0


class Settings:
    offset = 0.5


class Defaults(Settings):
    offset = 1.5


class Others(Settings):
    pass


def shifted(x: Tensor, by: float = 0.25, *, times: float = 1.0) -> Tensor:
    return x * times + by


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.slotted = Slotted()
        self.settings = Settings()
        self.factors = [1.0, 2.0]
        self.offsets = [3.0]
        self.extra: list[float] = []
        self.names = {"a", "b"}
        self.many = set(range(40))
        self.table = {"a": 1.0}
        self.ordered = collections.OrderedDict(a=1.0, b=2.0)
        self.made: dict[str, float] = collections.defaultdict(float, a=1.0)
        self.queue = collections.deque([1.0])

    def forward(self, x: Tensor) -> Tensor:
        first, *_ = self.ordered.values()
        x = shifted(self.lin(x)) * SCALE * self.slotted.power + self.settings.offset
        x = x + sum(self.offsets) + sum(self.extra)
        x = x * sum(self.factors) * len(self.names) * self.table["a"] * first
        x = x + len(self.many)
        return x * self.made["a"] * self.queue[0] * RATE.get()


class Watched:
    """A model and its step, with one variable in an enclosing function."""

    def __init__(self) -> None:
        self.model = model = Model()
        bias = 1.0

        def step(x: Tensor) -> Tensor:
            return model(x) + bias

        def rebind(value: float) -> None:
            nonlocal bias
            bias = value

        self.step, self.rebind = step, rebind
        ran = Execution()
        with ran:
            step(torch.ones(3))
        self.snapshot = StateSnapshot(step, ran)

    @property
    def quick(self) -> quick_check.QuickCheck:
        return self.snapshot._quick


def in_hot_code(watched: Watched) -> None:
    for _ in range(100):
        watched.model.table = watched.model.table
    for number in range(100):
        watched.model.slope = number  # type: ignore[assignment]


def replace(items: set[Any], by: Any) -> None:
    items.remove(next(iter(items)))
    items.add(by)


CHANGES: dict[str, Callable[[Watched], object]] = {
    "attribute": lambda w: setattr(w.model, "training", False),
    "attribute in hot code": in_hot_code,
    "deleted attribute": lambda w: delattr(w.model, "queue"),
    "global": lambda w: globals().update(SCALE=3.0),
    "variable of a closure": lambda w: w.rebind(2.0),
    "slot": lambda w: setattr(w.model.slotted, "power", 2.0),
    "unassigned slot": lambda w: delattr(w.model.slotted, "power"),
    "type": lambda w: setattr(w.model.settings, "__class__", Others),
    "namespace": lambda w: setattr(w.model.settings, "__dict__", {"offset": 1.0}),
    "attribute that hides one of the class": lambda w: setattr(
        w.model.settings, "offset", 1.0
    ),
    "attribute of a class": lambda w: setattr(Settings, "offset", 1.0),
    "bases of a class": lambda w: setattr(Others, "__bases__", (Defaults,)),
    "defaults": lambda w: setattr(shifted, "__defaults__", (0.5,)),
    "keyword defaults": lambda w: setattr(shifted, "__kwdefaults__", {"times": 2.0}),
    "code": lambda w: setattr(shifted, "__code__", (lambda x, by, times: x).__code__),
    "item of a list": lambda w: w.model.factors.__setitem__(0, 3.0),
    "length of a list": lambda w: w.model.factors.append(3.0),
    "item of an empty list": lambda w: w.model.extra.append(1.0),
    "item that moves to the next list": lambda w: w.model.offsets.insert(
        0, w.model.factors.pop()
    ),
    "set": lambda w: w.model.names.add("c"),
    "another item of a set": lambda w: replace(w.model.names, "c"),
    "another item of a large set": lambda w: replace(w.model.many, 40),
    "deque": lambda w: w.model.queue.append(2.0),
    "dict": lambda w: w.model.table.update(a=2.0),
    "order": lambda w: w.model.ordered.move_to_end("a"),
    "defaultdict": lambda w: w.model.made["b"],
    "context variable": lambda w: RATE.set(2.0),
    "parameter": lambda w: setattr(w.model.lin, "bias", nn.Parameter(torch.ones(3))),
    "child": lambda w: setattr(w.model, "lin", nn.Linear(3, 3)),
}


@pytest.fixture(autouse=True)
def restored() -> Any:
    kept = SCALE, Settings.offset, Others.__bases__, RATE.get()
    defaults = shifted.__defaults__, shifted.__kwdefaults__, shifted.__code__
    yield
    globals().update(SCALE=kept[0])
    Settings.offset, Others.__bases__ = kept[1], kept[2]
    RATE.set(kept[3])
    shifted.__defaults__, shifted.__kwdefaults__, shifted.__code__ = defaults


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(
    change: str, supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not supported:
        monkeypatch.setattr(quick_check, "is_supported", lambda: False)
    watched = Watched()
    if change == "bases of a class":
        watched.model.settings.__class__ = Others
        watched.snapshot.extend()
    assert watched.quick.unchanged()
    CHANGES[change](watched)
    assert not watched.quick.unchanged()
    watched.quick.renew()
    assert watched.quick.unchanged()


@pytest.mark.parametrize("supported", [True, False])
def test_what_is_not_read_does_not_count(
    supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another global and another attribute change, and an entry keeps its value."""
    if not supported:
        monkeypatch.setattr(quick_check, "is_supported", lambda: False)
    watched = Watched()
    for number in range(3):
        globals().update(OTHER=number, SCALE=SCALE)
        watched.model.settings.calls = number  # type: ignore[attr-defined]
        watched.model.table["a"] = watched.model.table["a"]
        if not number:  # the name is new
            watched.snapshot.refresh()
        assert watched.snapshot.unchanged()


@pytest.mark.skipif(not quick_check.is_supported(), reason="versions of dicts differ")
def test_almost_nothing_is_left_to_python() -> None:
    left = {watch.kind.name for watch in Watched().quick.rest.every}
    assert left <= {"items", "context"}


LAYOUTS: dict[str, Callable[[Tensor], object]] = {
    "requires_grad": lambda t: t.requires_grad_(),
    "shape": lambda t: t.resize_(3, 2),
    "strides": lambda t: t.t_(),
    "dtype": lambda t: setattr(t, "data", t.data.double()),
}


@pytest.mark.parametrize("change", LAYOUTS)
def test_guards_see_a_layout(change: str) -> None:
    tensors = [torch.ones(3), torch.ones(2, 3)]
    same = same_layouts(tensors)
    assert same is not None and same(*tensors)
    LAYOUTS[change](tensors[1])
    assert not same(*tensors)
