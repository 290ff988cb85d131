"""Forwards that are no plain methods, and names that wrappers have to leave alone."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof

pytestmark = pytest.mark.usefixtures("fresh_compiler")
X = torch.ones(3)


class Static(nn.Module):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x + 1


class OfClass(nn.Module):
    amount = 2

    @classmethod
    def forward(cls, x: Tensor) -> Tensor:
        return x + cls.amount


class Partial(nn.Module):
    forward = functools.partial(torch.add, other=3)


class PartialMethod(nn.Module):
    def run(self, x: Tensor, amount: int) -> Tensor:
        return x + amount

    forward = functools.partialmethod(run, amount=4)


class ModuleInBody(nn.Module):
    forward = nn.Linear(3, 3)


class Adder:
    def __call__(self, x: Tensor) -> Tensor:
        return x + 5


class ObjectInBody(nn.Module):
    forward = Adder()


class Bound:
    """Decorates a method: it binds by itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return functools.partial(self.function, instance)


class Decorated(nn.Module):
    @Bound
    def forward(self, x: Tensor) -> Tensor:
        return x + 6


class Builtin(nn.Module):
    forward = torch.sin


class OfInstance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forward = Adder()


class Wrapped(nn.Module):
    @functools.wraps(Static.forward)
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return Static.forward(*args, **kwargs) * 2


class Delegating(nn.Module):
    def __getattr__(self, name: str) -> Any:
        return Adder() if name == "encode" else super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.encode(x)
        return answer


FORWARDS = [
    *(Static, OfClass, PartialMethod, ModuleInBody, ObjectInBody),
    pytest.param(
        Partial,
        marks=[
            pytest.mark.filterwarnings("ignore:functools.partial will be a method"),
            pytest.mark.skipif(sys.version_info >= (3, 14), reason="it binds `self`"),
        ],
    ),
    *(Decorated, Builtin, OfInstance, Wrapped, Delegating),
]


@pytest.mark.parametrize("kind", FORWARDS)
def test_a_forward_of_any_kind_is_compiled(kind: type[nn.Module]) -> None:
    model = kind()
    expected = model(X)
    torchproof.compile(model, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(model(X), expected)
    told = torchproof.status(model)
    assert (told.calls, told.compiled_calls) == (2, 2), str(told)
    torch.testing.assert_close(copy.deepcopy(model)(X), expected)
    torchproof.compile(model, strategy="eager")
    torch.testing.assert_close(model(X), expected)


def test_a_class_method_follows_its_class() -> None:
    model = torchproof.compile(OfClass(), backend="eager")
    model(X)
    model.__class__ = type("More", (OfClass,), {"amount": 20})
    assert torch.equal(model(X), X + 20)


@pytest.mark.parametrize("strategy", ["full", "core:encode"])
def test_a_method_that_the_model_makes_up_is_compiled(strategy: str) -> None:
    model = torchproof.compile(Delegating(), strategy=strategy, backend="eager")
    for _ in range(2):
        assert torch.equal(model(X), X + 5)
    assert torchproof.status(model).compiled_calls == 2


class Computed(nn.Module):
    @property
    def forward(self) -> Any:
        return Adder()


def test_a_property_is_left_alone_and_said() -> None:
    """Python looks it up before anything that the instance has."""
    model = torchproof.compile(Computed(), backend="eager")
    assert torch.equal(model(X), X + 5)
    told = torchproof.status(model)
    assert told.strategy == "eager" and "property" in told.why


# -- names -----------------------------------------------------------------------------

NAMES = ("self", "owner", "name", "run", "fn", "step", "call", "model", "entry")


def summed(x: Tensor, **amounts: int) -> Tensor:
    return x + sum(amounts.values())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "eager"},
        {"verify": 1},
        {"monitor": True},
        {"wait": False},
    ],
    ids=str,
)
def test_keywords_have_any_name(options: dict[str, Any]) -> None:
    amounts = dict.fromkeys(NAMES, 2)
    function = torchproof.compile(summed, **{"backend": "eager", **options})
    for _ in range(2):
        assert torch.equal(function(X, **amounts), summed(X, **amounts))


def test_a_step_takes_keywords_of_any_name() -> None:
    amounts = dict.fromkeys(NAMES, 2)
    with torchproof.step() as step:
        assert torch.equal(step.run(summed, X, **amounts), summed(X, **amounts))
    decorated = torchproof.step()(summed)
    assert torch.equal(decorated(X, **amounts), summed(X, **amounts))


# What stands in for a function of torch or of Python has the names of that one.
AS_NAMED_THERE = {
    ("observe/audit/syncs.py", "show"),
    ("observe/ranks/rank_observer.py", "fully_shard"),
    ("observe/ranks/rank_observer.py", "initialise"),
    ("runtime/cudagraph/capture.py", "show"),
    ("targets/transformers_text.py", "update"),
}


def forwarders() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of the package that hand on whatever arguments they are called with."""
    root = Path(inspect.getfile(torchproof)).parent
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        if ", **" not in text or path.startswith("torch_private/"):
            continue
        for node in ast.walk(ast.parse(text)):
            is_function = isinstance(node, ast.FunctionDef)
            if is_function and node.args.vararg and node.args.kwarg:
                yield path, node


def test_every_wrapper_has_positional_only_parameters() -> None:
    every = list(forwarders())
    named = {
        (path, node.name): [argument.arg for argument in node.args.args]
        for path, node in every
        if node.args.args
    }
    assert len(every) > 20
    assert {
        key: names for key, names in named.items() if key not in AS_NAMED_THERE
    } == {}
