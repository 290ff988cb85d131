"""A class that changes after a model was compiled: calls see it, as in eager."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

import torchproof

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def classes() -> SimpleNamespace:
    """New ones for each test, which changes them."""

    class Base(nn.Module):
        def inherited(self, x: Tensor) -> Tensor:
            return x + 10

    class Helper:
        def apply(self, x: Tensor) -> Tensor:
            return x + 20

    class Block(Base):
        gain = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.helper = Helper()

        def forward(self, x: Tensor) -> Tensor:
            y = self.method(x) + self.static(x) + self.of_class(x) + self.computed
            return self.inherited(self.helper.apply(y)) * self.gain

        def method(self, x: Tensor) -> Tensor:
            return x + 1

        @staticmethod
        def static(x: Tensor) -> Tensor:
            return x + 2

        @classmethod
        def of_class(cls, x: Tensor) -> Tensor:
            return x + 3

        @property
        def computed(self) -> float:
            return 4.0

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block(), Block())

        def forward(self, x: Tensor) -> Tensor:
            return self.finish(self.blocks(x))

        def finish(self, x: Tensor) -> Tensor:
            return x + 5

    class Other(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 3

    return SimpleNamespace(**{k: v for k, v in locals().items() if k[0].isupper()})


def plus(amount: int) -> Callable[[Any, Tensor], Tensor]:
    return lambda self, x: x + amount


Change = Callable[[SimpleNamespace, Any], Any]
CHANGES: dict[str, Change] = {
    "forward": lambda c, m: setattr(c.Net, "forward", plus(50)),
    "code of forward": lambda c, m: setattr(
        c.Net.forward, "__code__", (lambda self, x: x + 50).__code__
    ),
    "class": lambda c, m: setattr(m, "__class__", c.Other),
    "forward of the instance": lambda c, m: setattr(m, "forward", lambda x: x + 50),
    "method": lambda c, m: setattr(c.Net, "finish", plus(50)),
    "forward of a block": lambda c, m: setattr(c.Block, "forward", plus(50)),
    "code of a block": lambda c, m: setattr(
        c.Block.forward, "__code__", (lambda self, x: x + 50).__code__
    ),
    "class of a block": lambda c, m: setattr(
        m.blocks[1], "__class__", type("Sub", (c.Block,), {"forward": plus(50)})
    ),
    "method of a block": lambda c, m: setattr(c.Block, "method", plus(50)),
    "static method": lambda c, m: setattr(
        c.Block, "static", staticmethod(lambda x: x + 50)
    ),
    "class method": lambda c, m: setattr(c.Block, "of_class", classmethod(plus(50))),
    "property": lambda c, m: setattr(c.Block, "computed", property(lambda s: 50.0)),
    "inherited method": lambda c, m: setattr(c.Base, "inherited", plus(50)),
    "method that hides another": lambda c, m: setattr(c.Block, "inherited", plus(50)),
    "method of an object": lambda c, m: setattr(c.Helper, "apply", plus(50)),
    "attribute": lambda c, m: setattr(c.Block, "gain", 50.0),
    "__call__": lambda c, m: setattr(c.Block, "__call__", plus(50)),
    "__getattribute__": lambda c, m: setattr(
        c.Block,
        "__getattribute__",
        lambda self, name: (
            (lambda x: x + 50)
            if name == "method"
            else nn.Module.__getattribute__(self, name)
        ),
    ),
    "bases": lambda c, m: setattr(
        c.Block, "__bases__", (type("New", (nn.Module,), {"inherited": plus(50)}),)
    ),
}
HOOKS: dict[str, Callable[[], Any]] = {
    "forward hook": lambda: modules.register_module_forward_hook(
        lambda module, args, out: out + 1
    ),
    "forward pre-hook": lambda: modules.register_module_forward_pre_hook(
        lambda module, args: (args[0] + 1,)
    ),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "full": {},
    "regional": {"strategy": "regional"},
    "nested": {"strategy": "nested"},
    "core method": {"strategy": "core:finish"},
    "core block": {"strategy": "core:blocks.1"},
    "eager": {"strategy": "eager"},
    "not waiting": {"wait": False},
    "verified": {"verify": 2},
}
X = torch.ones(3)
# Each in one way that compiles the whole model; each way with what it keeps by itself.
PAIRS = [
    *(("full", change) for change in CHANGES),
    *((strategy, "forward of a block") for strategy in [*STRATEGIES][1:]),
    *(
        pytest.param(strategy, change, marks=pytest.mark.slow)
        for strategy in [*STRATEGIES][1:]
        for change in CHANGES
        if change != "forward of a block"
    ),
]


def compiled(strategy: str) -> tuple[SimpleNamespace, Any]:
    """A model that has settled, and its classes."""
    kinds = classes()
    options = {"backend": "eager", **STRATEGIES[strategy]}
    model = torchproof.compile(kinds.Net(), **options)
    for _ in range(3):
        assert torch.equal(model(X), kinds.Net()(X))
    until = time.monotonic() + 10
    while torchproof.status(model).pending and time.monotonic() < until:
        time.sleep(0.01)
    model(X)
    return kinds, model


def in_eager(kinds: SimpleNamespace, change: Change) -> Tensor:
    """The answer of a model that was never compiled, changed in the same way."""
    model = kinds.Net()
    change(kinds, model)
    answer: Tensor = model(X)
    return answer


@pytest.mark.parametrize("strategy, change", PAIRS)
def test_a_change_is_seen_by_the_next_call(strategy: str, change: str) -> None:
    kinds, model = compiled(strategy)
    CHANGES[change](kinds, model)
    expected = in_eager(classes(), CHANGES[change])
    assert not torch.equal(expected, classes().Net()(X))
    for _ in range(2):
        assert torch.equal(model(X), expected)


@pytest.mark.parametrize(
    "strategy",
    [
        "full",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("regional", "nested", "core block")
        ),
    ],
)
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_on_all_modules_are_obeyed_and_forgotten(
    strategy: str, hook: str
) -> None:
    kinds, model = compiled(strategy)
    before = model(X)
    handle = HOOKS[hook]()
    try:
        assert torch.equal(model(X), kinds.Net()(X))
        assert not torch.equal(model(X), before)
    finally:
        handle.remove()
    assert torch.equal(model(X), before)


def test_backward_hooks_on_all_modules_are_called() -> None:
    _, model = compiled("full")
    seen: list[nn.Module] = []
    handle = modules.register_module_full_backward_hook(
        lambda module, *_: seen.append(module)
    )
    try:
        x = X.clone().requires_grad_()
        model(x).sum().backward()
        called = len(seen)
        classes().Net()(x).sum().backward()
    finally:
        handle.remove()
    assert called == len(seen) - called == 5


def test_what_does_not_matter_compiles_nothing_again() -> None:
    kinds, model = compiled("full")
    kinds.Block.note = "new"
    kinds.Net.__doc__ = "Another text."
    kinds.Block.unused = plus(1)
    kinds.Other.forward = plus(1)
    handle = modules.register_module_forward_hook(lambda *_: None)
    handle.remove()
    model(X)
    told = torchproof.status(model)
    assert len(told.compilations) == 1 and told.compiled_share == 1.0


def test_a_change_is_the_reason_of_the_next_compilation() -> None:
    kinds, model = compiled("full")
    kinds.Block.method = plus(1)
    model(X)
    assert "Block.method" in (torchproof.status(model).compilations[-1].cause or "")


def test_a_model_that_fell_back_stays_eager_and_runs_the_new_forward() -> None:
    kinds = classes()
    model = torchproof.compile(kinds.Net(), backend="eager")
    model(X)
    model.forward.go_eager(None)
    kinds.Net.forward = plus(50)
    assert torch.equal(model(X), X + 50)
    told = torchproof.status(model)
    assert (told.strategy, told.calls, told.compiled_calls) == ("eager", 2, 1)


def test_a_compiled_part_of_a_compiled_model_is_followed() -> None:
    kinds, model = compiled("full")
    torchproof.compile(model.blocks[1], backend="eager")
    model(X)
    kinds.Block.forward = plus(50)
    assert torch.equal(model(X), X + 155)
