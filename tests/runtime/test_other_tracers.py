"""Compiled models given to what else traces, exports and differentiates models."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from twins import Block

import torchproof

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # Dynamo hides it where warnings are shown, not where they are errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(self.blocks(x))

    def finish(self, x: Tensor) -> Tensor:
        return x.sum(-1)


X = torch.linspace(-1, 1, 12).view(3, 4)


def dual(model: Any) -> Any:
    with forward_ad.dual_level():
        answer = model(forward_ad.make_dual(X, X.cos()))
        return tuple(forward_ad.unpack_dual(answer))


TRACERS: dict[str, Callable[[Any], Any]] = {
    "torch.export": lambda model: torch.export.export(model, (X,)).module()(X),
    "torch.export, strict": lambda model: torch.export.export(
        model, (X,), strict=True, dynamic_shapes=({0: torch.export.Dim.AUTO},)
    ).module()(X),
    "torch.jit.script": lambda model: torch.jit.script(model)(X),
    "torch.jit.script of a parent": lambda model: torch.jit.script(
        nn.Sequential(model, nn.ReLU())
    )(X),
    "torch.jit.trace": lambda model: torch.jit.trace(model, (X,))(X),
    "symbolic_trace": lambda model: torch.fx.symbolic_trace(model)(X),
    "make_fx": lambda model: torch.fx.experimental.proxy_tensor.make_fx(model)(X)(X),
    "torch.compile": lambda model: torch.compile(
        model, backend="eager", fullgraph=True
    )(X),
    "forward-mode differentiation": dual,
}
QUICK = {"torch.export", "symbolic_trace", "torch.compile"}
QUICK |= {"forward-mode differentiation"}


@pytest.mark.parametrize(
    "strategy",
    [
        "full",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("regional", "core:finish", "eager")
        ),
    ],
)
@pytest.mark.parametrize(
    "tracer",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in TRACERS
    ],
)
def test_others_trace_a_compiled_model_as_the_plain_one(
    tracer: str, strategy: str
) -> None:
    plain = Net()
    expected = TRACERS[tracer](copy.deepcopy(plain))
    for calls in (0, 2):  # before its first call, and after it
        model = copy.deepcopy(plain)
        torchproof.compile(model, strategy=strategy, backend="aot_eager")
        for _ in range(calls):
            model(X)
        torch.testing.assert_close(TRACERS[tracer](model), expected)
        torch.testing.assert_close(model(X), plain(X))
        told = torchproof.status(model)
        assert not told.fallbacks, str(told)


def test_forward_mode_leaves_compiled_code_for_a_call_and_compiles_nothing() -> None:
    model = torchproof.compile(Net(), backend="aot_eager")
    model(X)
    dual(model)
    model(X)
    told = torchproof.status(model)
    assert (told.calls, told.compiled_calls, len(told.compilations)) == (3, 2, 1)


@pytest.mark.parametrize(
    "path", ["", pytest.param("blocks.1.mix", marks=pytest.mark.slow)]
)
def test_parametrizations_are_registered_and_removed_at_any_time(path: str) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * 2

    plain = nn.Linear(4, 4) if not path else Net()
    models = [plain, torchproof.compile(copy.deepcopy(plain), backend="aot_eager")]

    def assert_same() -> None:
        answers = [model(X) for model in models]
        torch.testing.assert_close(*answers)
        for answer in answers:
            answer.sum().backward()

    assert_same()
    for _ in range(2):
        for model in models:
            part = model.get_submodule(path)
            parametrize.register_parametrization(part, "weight", Doubled())
        assert_same()
        for model in models:
            parametrize.remove_parametrizations(model.get_submodule(path), "weight")
        assert_same()


# -- functions -------------------------------------------------------------------------


def scaled(x: Tensor, by: float = 2.0) -> Tensor:
    """Scales."""
    return x * by


@pytest.fixture
def function() -> Any:
    """A new one for each test, which changes it."""
    new = type(scaled)(scaled.__code__, scaled.__globals__, "scaled")
    new.__defaults__, new.__doc__ = scaled.__defaults__, scaled.__doc__
    return new


def test_attributes_are_those_of_the_function(function: Any) -> None:
    function.tag, function.run = 1, "a name that is taken"
    compiled = torchproof.compile(function, backend="eager")
    compiled(X)
    function.tag = 2
    assert compiled.tag == 2
    compiled.tag = 3
    assert function.tag == 3
    del compiled.tag
    assert not hasattr(function, "tag") and not hasattr(compiled, "tag")
    for name, value in (("__doc__", "New."), ("__name__", "new")):
        setattr(function, name, value)
        assert getattr(compiled, name) == value
        setattr(compiled, name, value * 2)
        assert getattr(function, name) == value * 2
    assert compiled.__code__ is function.__code__
    assert compiled.__wrapped__ is function
    compiled.__defaults__ = (5.0,)
    assert torch.equal(compiled(X), X * 5)
    function.__code__ = (lambda x, by=1.0: x + by).__code__
    assert torch.equal(compiled(X), X + 5)
    assert inspect.signature(compiled) == inspect.signature(function)


async def awaited(x: Tensor) -> Tensor:
    return x + 1


def yielded(x: Tensor) -> Any:
    yield x + 1


async def streamed(x: Tensor) -> Any:
    yield x + 1


async def first_of(stream: Any) -> Any:
    (only,) = [each async for each in stream]
    return only


KINDS: list[tuple[Any, Callable[[Any], bool], Callable[[Any], Any]]] = [
    (awaited, inspect.iscoroutinefunction, asyncio.run),
    (awaited, asyncio.iscoroutinefunction, asyncio.run),
    (yielded, inspect.isgeneratorfunction, next),
    (streamed, inspect.isasyncgenfunction, lambda made: asyncio.run(first_of(made))),
]


@pytest.mark.parametrize("function, is_kind, result", KINDS)
def test_functions_that_suspend_are_known_as_such(
    function: Any, is_kind: Any, result: Any
) -> None:
    compiled = torchproof.compile(function, backend="eager")
    assert is_kind(compiled)
    assert not is_kind(torchproof.compile(scaled, backend="eager"))
    for _ in range(2):
        assert torch.equal(result(compiled(X)), X + 1)
    told = torchproof.status(compiled)
    assert told.compiled_calls == 0 and told.fallbacks[0].kind == "unsupported"


# -- switched off ----------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["config", "stance", "environment"])
def test_a_switch_of_torch_is_the_reason_that_nothing_is_compiled(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "config": "torch._dynamo.config.disable",
        "stance": "force_eager",
        "environment": "TORCHDYNAMO_DISABLE=1",
    }
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
    told = torchproof.status(function)
    assert told.compiled_calls == 0
    assert [note for note in told.notes if words[switch] in note]
    assert words[switch] in str(told)


def test_a_switch_that_is_set_later_is_the_reason_as_long_as_it_is_set() -> None:
    function = torchproof.compile(lambda x: x + 1, backend="eager")
    function(X)
    with torch._dynamo.config.patch(disable=True):
        assert not torchproof.status(function).notes
    assert torchproof.status(function).compiled_share == 1.0
