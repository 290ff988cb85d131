"""Calls of compiled models answer, differentiate and fail as eager ones do."""

from __future__ import annotations

import inspect
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from twins import (
    Net,
    assert_alike,
    assert_compiled,
    assert_trained_alike,
    compiled,
    sample,
    twins,
)

import torchproof

# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


# -- arguments and answers -------------------------------------------------------------


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


@dataclass
class Answer:
    value: Tensor
    parts: dict[str, Any]


class Flexible(nn.Module):
    """Takes arguments in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(
        self, x: Tensor, *more: Tensor, mask: Tensor | None = None, **named: Any
    ) -> Tensor:
        for one in more:
            x = x + one
        if mask is not None:
            x = x * mask
        for value in named.get("extra", {}).get("list", ()):
            x = x - value
        return self.mix(x) * named.get("times", 1)


def test_arguments_arrive_in_every_form() -> None:
    plain, model = twins(Flexible())
    x, mask = sample(), torch.ones(3, 1)
    assert_alike(plain, model, x)
    assert_alike(plain, model, x=x)
    assert_alike(plain, model, x, x, x)
    assert_alike(plain, model, x, mask=mask)
    assert_alike(plain, model, x, mask=None, times=3)
    assert_alike(plain, model, x, extra={"list": [x, x * 2]})
    assert_compiled(model)


class Many(nn.Module):
    """Answers in a container of the kind that is asked for."""

    def forward(self, x: Tensor, kind: str) -> Any:
        y = x * 2
        answers: dict[str, Any] = {
            "dict": {"a": y, "b": [y, (x, None)], "c": 3},
            "named": Pair(y, None),
            "ordered": OrderedDict(a=y, b=x),
            "none": None,
            "tuple": (y,),
        }
        return answers[kind]


def test_answers_keep_their_containers() -> None:
    plain, model = twins(Many())
    for kind in ("dict", "named", "ordered", "none", "tuple"):
        expected, answer = plain(sample(), kind), model(sample(), kind)
        assert type(answer) is type(expected)
        torch.testing.assert_close(answer, expected, allow_subclasses=False)
    assert model(sample(), "named").left.shape == (3, 4)


def test_an_answer_may_be_a_dataclass_or_the_input_itself() -> None:
    @compiled
    def answer(x: Tensor) -> Answer:
        return Answer(x + 1, {"input": x})

    x = sample()
    told = answer(x)
    assert isinstance(told, Answer) and told.parts["input"] is x
    torch.testing.assert_close(told.value, x + 1)


def test_inputs_that_are_written_to() -> None:
    @compiled
    def add_one(x: Tensor, into: list[Tensor]) -> Tensor:
        x.add_(1)
        into.append(x * 2)
        return x

    x, into = torch.zeros(3), []
    assert add_one(x, into) is x
    assert add_one(x, into) is x
    assert x.tolist() == [2.0] * 3
    assert [one.tolist() for one in into] == [[2.0] * 3, [4.0] * 3]


# -- functions -------------------------------------------------------------------------


def doubled(x: Tensor, *, plus: float = 0.5) -> Tensor:
    """Twice as much."""
    return x * 2 + plus


class Holder:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_functions_methods_and_lambdas() -> None:
    x = sample()
    function = compiled(doubled)
    assert function.__name__ == "doubled" and function.__doc__ == doubled.__doc__
    assert inspect.signature(function) == inspect.signature(doubled)
    assert_alike(doubled, function, x, plus=1.0)
    method = compiled(Holder(3.0).scaled)
    torch.testing.assert_close(method(x), x * 3)
    nameless = compiled(lambda x: x - 1)
    torch.testing.assert_close(nameless(x), x - 1)
    for one in (function, method, nameless):
        assert_compiled(one)
        assert torchproof.status(one).calls == 1


@torchproof.compile(backend="aot_eager")
def decorated(x: Tensor) -> Tensor:
    return x.sin()


def test_decorators_with_and_without_arguments() -> None:
    bare = torchproof.compile(Holder(1.0).scaled, backend="eager")
    for one in (decorated, bare):
        one(sample())
        assert_compiled(one)
    torch.testing.assert_close(decorated(sample()), sample().sin())
    assert torchproof.compile(doubled).plain is doubled
    assert compiled(compiled(doubled)).plain is doubled


def test_a_function_is_pickled_by_what_it_calls() -> None:
    function = pickle.loads(pickle.dumps(compiled(doubled)))
    torch.testing.assert_close(function(sample()), doubled(sample()))
    assert_compiled(function)


# -- contexts --------------------------------------------------------------------------


def test_gradients_are_off_where_they_are_off() -> None:
    plain, model = twins(Net().eval())
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            answer = assert_alike(plain, model, sample())
            assert answer.requires_grad is (context is torch.enable_grad)
            assert answer.is_inference() is (context is torch.inference_mode)
    assert_trained_alike(plain, model, sample())
    assert_compiled(model)


def test_autocast_is_seen_whenever_it_is_on() -> None:
    plain, model = twins(Net().eval())
    for enabled in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            answer = assert_alike(plain, model, sample())
            assert answer.dtype == (torch.bfloat16 if enabled else torch.float32)
    assert_compiled(model, 2)


def test_the_default_device_is_seen() -> None:
    @compiled
    def filled(rows: int) -> Tensor:
        return torch.ones(rows) * 2

    assert filled(3).device.type == "cpu"
    with torch.device("meta"):
        assert filled(3).device.type == "meta"
    torch.set_default_device("meta")
    try:
        assert filled(3).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert filled(3).device.type == "cpu"


# torch 2.15 scripts functions itself where forward-mode gradients begin.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.parametrize("first", ["transformed", "plain"])
def test_function_transforms_over_a_model(first: str) -> None:
    plain, model = twins(Net().eval())
    if first == "plain":
        assert_alike(plain, model, sample())
    batches = torch.stack([sample(seed=seed) for seed in range(3)])
    weights = dict(plain.named_parameters())

    def loss(weights: dict[str, Tensor], one: nn.Module, x: Tensor) -> Tensor:
        return torch.func.functional_call(one, weights, (x,)).square().sum()

    for run in (
        lambda one: torch.vmap(one)(batches),
        lambda one: torch.func.grad(lambda x: one(x).sum())(sample()),
        lambda one: torch.func.grad(loss)(weights, one, sample()),
        lambda one: torch.func.jvp(one, (sample(),), (sample(seed=1),)),
        lambda one: torch.vmap(torch.func.jacrev(one))(batches),
    ):
        torch.testing.assert_close(run(model), run(plain))
    assert_alike(plain, model, sample())


def test_saved_tensors_hooks_are_called() -> None:
    plain, model = twins(Net().eval())
    packed: list[int] = []

    def pack(x: Tensor) -> Tensor:
        packed.append(1)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        assert_trained_alike(plain, model, sample())
    assert packed
    with torch.autograd.graph.save_on_cpu():
        assert_trained_alike(plain, model, sample())


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = checkpoint(self.net, x, use_reentrant=False)
        return answer * 2


def test_activations_recomputed_inside_and_around() -> None:
    assert_trained_alike(*twins(Recomputed()), sample())
    plain, inner = twins(Net())
    outer = [Recomputed(), Recomputed()]
    outer[0].net, outer[1].net = plain, inner
    for _ in range(2):
        assert_trained_alike(*outer, sample())
    assert_compiled(inner)


# -- autograd --------------------------------------------------------------------------


def test_the_same_graph_is_run_backward_twice() -> None:
    plain, model = twins(Net().eval())
    for one in (plain, model):
        answer = one(sample()).sum()
        answer.backward(retain_graph=True)
        answer.backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_gradients_reach_inputs_and_several_outputs() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() * y, y.cos().sum()

    function = compiled(both)
    for pick in ((0,), (1,), (0, 1)):
        grads = []
        for fn in (both, function):
            x, y = sample().requires_grad_(), sample(seed=1).requires_grad_()
            answers = fn(x, y)
            torch.stack([answers[i].sum() for i in pick]).sum().backward()
            grads.append((x.grad, y.grad))
        for one, other in zip(*grads, strict=True):
            assert (one is None and not other.any()) if other is None else True
            torch.testing.assert_close(
                *(torch.zeros(3, 4) if g is None else g for g in (one, other))
            )


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_second_derivatives_are_refused_by_name_or_right(backend: str) -> None:
    """AOTAutograd has none, whoever calls it; Dynamo alone has eager's."""

    def cubed(x: Tensor) -> Tensor:
        return (x**3).sum()

    function, x = compiled(cubed, backend=backend), torch.ones(3, requires_grad=True)
    (slope,) = torch.autograd.grad(function(x), x, create_graph=True)
    torch.testing.assert_close(slope, torch.full((3,), 3.0))
    if backend == "eager":
        slope.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 6.0))
    else:
        with pytest.raises(RuntimeError, match="double backward"):
            slope.sum().backward()
