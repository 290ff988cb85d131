"""A compiled module stays the module it was: state, modes, hooks, copies."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
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
from torchproof.runtime.method_replacement import MethodReplacement

# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


# -- state -----------------------------------------------------------------------------


def test_the_module_itself_is_returned_with_its_state_untouched() -> None:
    model = Net()
    before = {
        "state": list(model.state_dict().items()),
        "parameters": list(model.named_parameters()),
        "buffers": list(model.named_buffers()),
        "modules": list(model.named_modules()),
        "children": list(model.children()),
    }
    text, signature = repr(model), inspect.signature(model.forward)
    assert compiled(model) is model
    for _ in range(2):  # before the first call, and after it
        assert [k for k, _ in before["state"]] == list(model.state_dict())
        for (_, one), (_, other) in zip(
            before["state"], model.state_dict().items(), strict=True
        ):
            assert one.data_ptr() == other.data_ptr()
        assert before["parameters"] == list(model.named_parameters())
        assert before["buffers"] == list(model.named_buffers())
        assert before["modules"] == list(model.named_modules())
        assert before["children"] == list(model.children())
        assert repr(model) == text and isinstance(model, Net)
        assert inspect.signature(model.forward) == signature
        assert type(model) is Net and model.forward.__name__ == "forward"
        model.eval()(sample())
    assert_compiled(model)


def test_a_state_that_is_loaded_later_is_used() -> None:
    plain, model = twins(Net().eval())
    assert_alike(plain, model, sample())
    other = Net().eval()
    model.load_state_dict(other.state_dict())
    assert_alike(other, model, sample())
    model.load_state_dict(plain.state_dict(), assign=True)
    assert_alike(plain, model, sample())


def test_modes_are_those_of_the_module() -> None:
    plain, model = twins(Net())
    for training in (True, False, True, False):
        plain.train(training)
        model.train(training)
        assert model.norm.training is training
        assert_alike(plain, model, sample(5))
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)
        assert model.norm.num_batches_tracked == plain.norm.num_batches_tracked
    model.norm.eval(), plain.norm.eval()
    assert_alike(plain, model, sample(5))
    assert_compiled(model)


@pytest.mark.slow
def test_moves_are_followed() -> None:
    plain, model = twins(Net().eval())
    assert_alike(plain, model, sample())
    assert model.to(torch.float64) is model
    assert_alike(plain.double(), model, sample().double())
    assert_alike(plain.bfloat16(), model.bfloat16(), sample().bfloat16())
    assert_alike(plain.half(), model.half(), sample().half())
    assert_compiled(model)


@pytest.mark.slow
def test_a_move_off_meta_is_refused_as_eager_refuses_it() -> None:
    plain, model = twins(Net().to("meta"))
    for one in (plain, model):
        with pytest.raises(NotImplementedError, match="meta tensor"):
            one.to("cpu")
        with pytest.raises(RuntimeError):
            one(sample())
        assert one.eval()(sample().to("meta")).is_meta
        one.to_empty(device="cpu")
    model.load_state_dict(plain.state_dict())
    torch.nn.init.ones_(plain.norm.running_var)
    torch.nn.init.ones_(model.norm.running_var)
    assert torch.equal(model(sample()).isnan(), plain(sample()).isnan())


def test_attributes_are_the_modules_own() -> None:
    plain, model = twins(Net().eval())
    assert_alike(plain, model, sample())
    plain.scale = model.scale = 3.0
    assert_alike(plain, model, sample())
    model.note = "kept"
    assert model.note == "kept" and not hasattr(plain, "note")
    torch.testing.assert_close(model.encode(sample()), plain.encode(sample()))
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = model.nothing
    del model.scale
    with pytest.raises(AttributeError, match="'scale'"):
        model(sample())
    model.scale = plain.scale
    assert_alike(plain, model, sample())


def test_parameters_that_change_are_used() -> None:
    plain, model = twins(Net().eval())
    optimizers = [torch.optim.AdamW(m.parameters(), 0.1) for m in (plain, model)]
    for _ in range(3):  # stepped in place
        for one, optimizer in zip((plain, model), optimizers, strict=True):
            for seed in (0, 1):  # gradients accumulate
                one(sample(seed=seed)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_alike(plain, model, sample())
    assert_compiled(model, 1)
    weight = torch.randn(2, 8)
    for one in (plain, model):  # replaced
        one.head.weight = nn.Parameter(weight.clone())
    assert_trained_alike(plain, model, sample())
    with torch.no_grad():  # written to
        for one in (plain, model):
            one.head.weight.fill_(0.5)
    assert_trained_alike(plain, model, sample())
    for one in (plain, model):  # a part put in another's place
        one.head = nn.Sequential(nn.Linear(8, 2, bias=False))
    model.head.load_state_dict(plain.head.state_dict())
    assert_trained_alike(plain, model, sample())


class Tied(nn.Module):
    """One weight with two names, and one module used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mix(torch.relu(self.mix(self.embed(tokens)))))


def test_tied_weights_and_modules_used_twice() -> None:
    plain, model = twins(Tied())
    assert_trained_alike(plain, model, torch.arange(6).view(2, 3))
    assert model.out.weight is model.embed.weight
    shared = compiled(nn.Linear(4, 4))
    both = nn.Sequential(shared, nn.ReLU(), shared)
    alone = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    for number in (0, 2):
        alone[number].load_state_dict(shared.state_dict())
    assert_alike(alone, both, sample())
    assert torchproof.status(shared).calls == 2


# -- hooks -----------------------------------------------------------------------------


def count_into(seen: list[str], name: str) -> Callable[..., None]:
    return lambda *_: seen.append(name)


def add_hooks(model: Any, seen: list[str]) -> list[Any]:
    return [
        getattr(module, f"register_{kind}")(count_into(seen, f"{name} {kind}"))
        for name, module in (("outer", model), ("inner", model.inner))
        for kind in (
            "forward_pre_hook",
            "forward_hook",
            "full_backward_pre_hook",
            "full_backward_hook",
        )
    ]


@pytest.mark.parametrize(
    "when", ["before", pytest.param("after", marks=pytest.mark.slow)]
)
def test_hooks_are_called_as_often_as_in_eager(when: str) -> None:
    plain, model = twins(Net().eval())
    x = sample().requires_grad_()
    if when == "after":
        assert_trained_alike(plain, model, x)
    seen: list[list[str]] = [[], []]
    hooks = [add_hooks(m, s) for m, s in zip((plain, model), seen, strict=True)]
    for _ in range(2):
        assert_trained_alike(plain, model, x)
        assert sorted(seen[0]) == sorted(seen[1])
    assert len(seen[1]) == 16
    for hook in [*hooks[0], *hooks[1]]:
        hook.remove()
    assert_trained_alike(plain, model, x)
    assert len(seen[1]) == 16


@pytest.mark.parametrize("part", ["", "inner"])
def test_hooks_that_change_values_are_obeyed_wherever_added(part: str) -> None:
    plain, model = twins(Net().eval())
    assert_alike(plain, model, sample())
    changes = [
        ("register_forward_pre_hook", lambda _, args: (args[0] * 2,)),
        ("register_forward_hook", lambda _, args, out: out + 1),
    ]
    for kind, change in changes:
        added = [getattr(m.get_submodule(part), kind)(change) for m in (plain, model)]
        assert_alike(plain, model, sample())
        for hook in added:
            hook.remove()
        assert_alike(plain, model, sample())


# -- copies ----------------------------------------------------------------------------


class Stack(nn.Module):
    """Blocks that feed one another, for a regional strategy, and a method."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(self.blocks(x))

    def finish(self, x: Tensor) -> Tensor:
        return x.sum(-1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mix(x))


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
}


@pytest.mark.parametrize(
    ("how", "strategy"),
    [
        pytest.param(how, strategy, marks=[pytest.mark.slow] if how != quick else [])
        for strategy, quick in (
            ("full", "deepcopy"),
            ("regional", "pickle"),
            ("core:finish", "torch.save"),
        )
        for how in COPIES
    ],
)
def test_a_copy_is_compiled_and_independent(how: str, strategy: str) -> None:
    model = compiled(Stack(), strategy=strategy)
    model(sample()), model(sample())  # a regional one watches its first call
    assert_compiled(model)
    twin = COPIES[how](model)
    assert not torchproof.status(twin).calls
    parts = [m.__dict__.get(n) for m in twin.modules() for n in ("forward", "finish")]
    owners = [part.owner for part in parts if isinstance(part, MethodReplacement)]
    assert owners and not {id(o) for o in owners} & {id(m) for m in model.modules()}
    expected = model(sample())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(twin(sample()), sample().sum(-1))
    assert torch.equal(twin(sample()), sample().sum(-1))
    assert torch.equal(model(sample()), expected)
    told = torchproof.status(twin)
    assert told.calls == 2 and told.strategy == strategy
    assert told.compiled_calls and not told.fallbacks, told  # with the model's code


def test_a_parent_is_copied_with_its_compiled_part() -> None:
    parent = nn.Sequential(compiled(Block()), nn.Linear(4, 1))
    parent(sample())
    twin = copy.deepcopy(parent)
    assert twin[0].forward.owner is twin[0]
    assert_alike(parent, twin, sample())
    assert torchproof.status(twin[0]).calls == 1
    assert torchproof.status(parent[0]).calls == 2


class Chosen(nn.Module):
    """Its forward is an attribute of the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.forward = self.run

    def run(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_a_forward_of_the_instance_is_compiled() -> None:
    plain, model = Chosen(), compiled(Chosen())
    assert_alike(plain, model, sample())
    assert_compiled(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.zero_()
    assert not twin(sample()).any()
    assert_alike(plain, model, sample())


def test_a_model_compiled_twice_takes_the_later_options() -> None:
    model = compiled(compiled(Block(), deadline=5.0), deadline=50.0)
    model(sample())
    told = torchproof.status(model)
    assert told.deadline_s == 50.0 and told.calls == 1
    assert len(told.compilations) == 1
