"""Whatever can be called can be compiled, and stays what it is."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from twins import compiled

import torchproof

pytestmark = pytest.mark.usefixtures("fresh_compiler")
X = torch.ones(3)


# -- forwards that are no plain methods ------------------------------------------------


class Adder:
    def __call__(self, x: Tensor) -> Tensor:
        return x + 5

    def method(self, x: Tensor) -> Tensor:
        return x + 6


class OfInstance(nn.Module):
    """Its forward is an attribute of the instance, bound to it."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.run

    def run(self, x: Tensor) -> Tensor:
        return x * 2


class MadeUp(nn.Module):
    def __getattr__(self, name: str) -> Any:
        return Adder() if name == "encode" else super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.encode(x)
        return answer


def add_one(x: Tensor) -> Tensor:
    return x + 1


# What stands in the body of a class.
BODIES: dict[str, Any] = {
    "static method": staticmethod(add_one),
    "class method": classmethod(lambda cls, x: x + 2 * issubclass(cls, nn.Module)),
    "partial method": functools.partialmethod(lambda self, x, y: x + y, y=4),
    "module": nn.Linear(3, 3),
    "object": Adder(),
    "builtin": torch.sin,
    "wrapper": functools.wraps(add_one)(lambda self, *args: add_one(*args) * 2),
    "compiled": torchproof.compile(lambda self, x: x * 3, backend="eager"),
    "partial": functools.partial(torch.add, other=3),
}


def of_body(name: str) -> type[nn.Module]:
    return type("Net", (nn.Module,), {"forward": BODIES[name]})


@pytest.mark.parametrize(
    "kind",
    [
        *(OfInstance, MadeUp),
        *(pytest.param(of_body(name), id=name) for name in [*BODIES][:-1]),
        pytest.param(
            of_body("partial"),
            marks=[
                pytest.mark.filterwarnings("ignore:functools.partial will be a method"),
                pytest.mark.skipif(sys.version_info >= (3, 14), reason="binds `self`"),
            ],
        ),
    ],
)
def test_a_forward_of_any_kind_is_compiled(kind: type[nn.Module]) -> None:
    model = kind()
    expected = model(X)
    torchproof.compile(model, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(model(X), expected)
    status = torchproof.status(model)
    assert (status.calls, status.compiled_calls) == (2, 2), status
    torch.testing.assert_close(copy.deepcopy(model)(X), expected)
    torchproof.compile(model, strategy="eager")
    torch.testing.assert_close(model(X), expected)


class Computed(nn.Module):
    @property
    def forward(self) -> Any:
        return Adder()


def test_a_property_is_left_alone() -> None:
    """Python looks it up before anything that the instance has."""
    model = torchproof.compile(Computed(), backend="eager")
    assert torch.equal(model(X), X + 5)
    assert torchproof.status(model).strategy == "eager"


# -- functions and objects -------------------------------------------------------------


def scaled(x: Tensor, by: float = 2.0) -> Tensor:
    """Scales."""
    return x * by


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU())


def compiled_in_place() -> nn.Module:
    model = net()
    model.compile(backend="eager")
    return model


CALLABLES: dict[str, Callable[[], Any]] = {
    "function": lambda: scaled,
    "lambda": lambda: lambda x: x - 1,
    "partial": lambda: functools.partial(torch.add, other=1),
    "object": Adder,
    "method": lambda: Adder().method,
    "builtin": lambda: torch.sin,
    "data parallel": lambda: nn.DataParallel(net()),
    "traced": lambda: torch.jit.trace(net(), X),
    "compiled module": lambda: torch.compile(net(), backend="eager"),
    "compiled in place": compiled_in_place,
    "compiled function": lambda: torch.compile(scaled, backend="eager"),
    "compiled by torchproof": lambda: torchproof.compile(net(), backend="eager"),
}


@pytest.mark.parametrize("kind", CALLABLES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_callables_of_any_kind_answer_as_with_torch(kind: str) -> None:
    answers = []
    for compiler in (torch.compile, torchproof.compile):
        function = compiler(CALLABLES[kind](), backend="eager")
        answers.append([function(X), function(X)])
    torch.testing.assert_close(*answers)
    status = torchproof.status(function)
    assert (status.calls, status.fallbacks) == (2, ())
    assert status.compiled_calls == (0 if kind == "traced" else 2)


def test_attributes_are_those_of_the_function() -> None:
    function: Any = type(scaled)(scaled.__code__, scaled.__globals__, "scaled")
    function.__defaults__, function.__doc__ = scaled.__defaults__, scaled.__doc__
    function.tag, function.run = 1, "a name that is taken"
    made = torchproof.compile(function, backend="eager")
    made(X)
    function.tag = 2
    assert made.tag == 2
    made.tag = 3
    assert function.tag == 3
    del made.tag
    assert not hasattr(function, "tag") and not hasattr(made, "tag")
    made.__doc__ = "New."
    assert (function.__doc__, made.__name__) == ("New.", "scaled")
    assert made.__code__ is function.__code__ and made.__wrapped__ is function
    made.__defaults__ = (5.0,)
    assert torch.equal(made(X), X * 5)
    function.__code__ = (lambda x, by=1.0: x + by).__code__
    assert torch.equal(made(X), X + 5)
    assert inspect.signature(made) == inspect.signature(function)


@torchproof.compile(backend="eager")
def decorated(x: Tensor) -> Tensor:
    return x.sin()


def test_functions_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    function = pickle.loads(pickle.dumps(compiled(scaled)))
    assert torch.equal(function(X), scaled(X))
    assert torchproof.status(function).compiled_calls == 1


async def awaited(x: Tensor) -> Tensor:
    return x + 1


def yielded(x: Tensor) -> Any:
    yield x + 1


async def streamed(x: Tensor) -> Any:
    yield x + 1


async def first_of(stream: Any) -> Any:
    (only,) = [each async for each in stream]
    return only


@pytest.mark.parametrize(
    ("function", "is_kind", "result"),
    [
        (awaited, inspect.iscoroutinefunction, asyncio.run),
        (yielded, inspect.isgeneratorfunction, next),
        (streamed, inspect.isasyncgenfunction, lambda s: asyncio.run(first_of(s))),
    ],
)
def test_functions_that_suspend_run_eager(
    function: Any, is_kind: Any, result: Any
) -> None:
    made = torchproof.compile(function, backend="eager")
    assert is_kind(made) and not is_kind(torchproof.compile(scaled, backend="eager"))
    assert torch.equal(result(made(X)), X + 1)
    status = torchproof.status(made)
    assert status.compiled_calls == 0 and status.fallbacks[0].kind == "unsupported"


NAMES = ("self", "owner", "name", "run", "fn", "step", "call", "model", "entry")


def summed(x: Tensor, **amounts: int) -> Tensor:
    return x + sum(amounts.values())


@pytest.mark.parametrize(
    "options",
    [{}, {"strategy": "eager"}, {"verify": 1}, {"wait": False}],
    ids=str,
)
def test_keywords_have_any_name(options: dict[str, Any]) -> None:
    amounts = dict.fromkeys(NAMES, 2)
    step = torchproof.step()(summed)
    assert torch.equal(step(X, **amounts), summed(X, **amounts))
    function = torchproof.compile(summed, **{"backend": "eager", **options})
    for _ in range(2):
        assert torch.equal(function(X, **amounts), summed(X, **amounts))


# -- switches of torch -----------------------------------------------------------------


@pytest.mark.parametrize("switch", ["config", "stance", "environment"])
def test_a_switch_of_torch_that_is_off_is_noted(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches: dict[str, Any] = {
        "config": lambda: torch._dynamo.config.patch(disable=True),
        "stance": lambda: torch.compiler.set_stance("force_eager"),
        "environment": contextlib.nullcontext,
    }
    function = torchproof.compile(lambda x: x + 1, backend="eager")
    if switch == "environment":
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with switches[switch]():
        function(X)
    status = torchproof.status(function)
    assert status.compiled_calls == 0 and status.notes
