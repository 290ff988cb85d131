"""`verify` finds wrong answers, accepts rounding, and the caller gets eager's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchproof
from torchproof.runtime import verification
from torchproof.runtime.forward_state import save_state
from torchproof.runtime.tensors import storages
from torchproof.runtime.verification import Verification, verified

Plant = Callable[[torch.Tensor], torch.Tensor]
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Net(nn.Module):
    """Batch norm behind a bias, tied weights, and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 16)
        self.last.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.last(self.norm(self.first(x)).relu())
        return {"loss": y.square().mean(), "y": y, "shape": tuple(y.shape)}


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def checked(
    eager: Callable[..., Any], compiled: Callable[..., Any], *args: Any, **options: Any
) -> Verification:
    _, found = verified(eager, compiled, args, {}, **options)
    json.dumps(found.to_json())
    return found


# -- what the caller gets --------------------------------------------------------------


class Meddler(nn.Module):
    """Changes everything it can reach."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.linear.weight
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("tail", self.count[2:], persistent=False)
        self.register_buffer("mean", torch.ones(2))
        self.constant = torch.full((2,), 5.0)
        self.seen = ["first"]
        self.calls = 0
        self.limit: float | None = None

    def forward(self, x: torch.Tensor, *, more: dict[str, object]) -> torch.Tensor:
        self.count += 1
        self.tail.mul_(7)
        self.mean = self.mean * 2
        self.constant.add_(1)
        self.seen.append("again")
        self.calls += 1
        self.limit = 3.0
        self.added = torch.ones(1)
        self.register_buffer("late", torch.ones(1), persistent=False)
        self.linear.weight.data.mul_(2)
        self.linear.bias.data = torch.zeros(3)
        self.linear.bias.grad = torch.ones(3)
        if self.linear.weight.grad is not None:
            self.linear.weight.grad.zero_()
        x.detach().add_(torch.rand_like(x.detach()))
        more["cache"].keys.append(x)
        more["cache"].first.add_(1)
        more["list"][0].add_(1)
        more["new"] = 1
        random.random()
        np.random.rand()
        torch.rand(1, generator=more["generator"])
        return self.linear(x)


def call_of() -> tuple[tuple[torch.Tensor], dict[str, dict[str, object]]]:
    cache = SimpleNamespace(keys=[], first=torch.ones(2))
    more = {
        "cache": cache,
        "list": [torch.ones(2)],
        "generator": torch.Generator().manual_seed(1),
    }
    base = torch.arange(12.0).reshape(2, 6)
    return (base[:, 3:],), {"more": more}


def everything(model: Any, args: tuple, kwargs: dict) -> list[object]:
    """A deep, comparable picture of all that a call may change."""
    more = kwargs["more"]
    names = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    tensors = [
        *model.parameters(),
        *(p.grad for p in model.parameters() if p.grad is not None),
        *model.buffers(),
        *args,
        *more["list"],
        *more["cache"].keys,
        more["cache"].first,
    ]
    return [
        [tensor.tolist() for tensor in tensors],
        {k: str(v) for k, v in names.items()},
        sorted(more),
        sorted(name for name, _ in model.named_buffers()),
        torch.get_rng_state().tolist(),
        more["generator"].get_state().tolist(),
        random.getstate(),
        str(np.random.get_state()),
    ]


def test_the_call_ends_as_if_only_eager_had_run() -> None:
    """Eager changes nothing here, so that all that compiled code does is undone."""
    model, (args, kwargs) = Meddler(), call_of()
    model.linear.weight.grad = torch.full((3, 3), 2.0)
    objects = [*model.parameters(), *model.buffers(), model.constant, model.seen]
    before, runs = everything(model, args, kwargs), list[int]()

    def compiled(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        answer = model(*args, **kwargs)
        assert everything(model, (), kwargs) != before
        return answer

    answer, _ = verified(lambda x, more: x * 2, compiled, args, kwargs, owner=model)
    assert len(runs) == 1 and torch.equal(answer, args[0] * 2)
    assert everything(model, args, kwargs) == before
    after = [*model.parameters(), *model.buffers(), model.constant, model.seen]
    assert all(one is other for one, other in zip(objects, after, strict=True))
    # Views and ties are what they were: a change of one is one of the other.
    model.count[2] = 9
    assert model.tail[0] == 9 and model.tied.weight is model.linear.weight


def test_a_pending_backward_pass_still_works() -> None:
    buffer, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    pending = (weight * buffer).sum()
    found = checked(lambda x: x * 1, lambda x: x.mul_(2), buffer)
    assert (found.verdict, found.where) == ("wrong", "output")
    pending.backward()
    assert weight.grad is not None and weight.grad.tolist() == [1, 1, 1]


def test_parameters_that_do_not_fit_are_reported_and_their_change_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    monkeypatch.setattr(storages, "free_bytes", lambda device: 10)
    state = save_state(model, (x,), {})
    assert "a copy of" in state.unprotected[0]
    model(x)
    assert state.restore() == ()
    assert model.num_batches_tracked == 0
    with torch.no_grad():
        model.weight.add_(1)
    assert state.restore() == ("parameter weight",)
    assert model.weight.tolist() == [2, 2, 2]


def test_an_error_of_eager_is_raised_and_one_of_compiled_code_is_not() -> None:
    model, x = net(), torch.randn(8, 16)

    def fails(x: torch.Tensor) -> torch.Tensor:
        model.norm.running_mean.add_(1)
        raise ValueError("boom")

    found = checked(model, fails, x, owner=model)
    assert (found.verdict, found.passed) == ("failed", False)
    assert found.why == "ValueError: boom"
    assert model.norm.num_batches_tracked == 1
    with pytest.raises(ValueError, match="boom"):
        checked(fails, model, x, owner=model)


def test_a_change_in_place_of_a_result_does_not_enter_its_history() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(3) * x

    leaf = torch.full((4,), 2.0, requires_grad=True)
    answer, found = verified(forward, forward, (leaf * 1,), {})
    assert found.verdict == "same", found
    answer.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [36.0] * 4


# -- planted errors, each with a clean twin --------------------------------------------


def off_by(share: float, at: int = 7) -> Plant:
    def plant(y: torch.Tensor) -> torch.Tensor:
        factor = torch.ones_like(y).flatten()
        factor[at] += share
        return y * factor.reshape(y.shape)

    return plant


@pytest.mark.parametrize(
    ("plant", "dtype", "verdict"),
    [
        (off_by(0.0), torch.float32, "same"),
        (off_by(1e-5), torch.float32, "rounding"),
        (off_by(0.01), torch.float32, "wrong"),
        (off_by(0.01), torch.float64, "wrong"),
        (off_by(0.05), torch.bfloat16, "rounding"),
        (off_by(0.005), torch.float16, "rounding"),
        (off_by(0.5), torch.bfloat16, "wrong"),
        (lambda y: y * 1.0005, torch.float32, "wrong"),
        (lambda y: y.double(), torch.float32, "wrong"),
        (lambda y: y[:-1], torch.float32, "wrong"),
        (lambda y: (y,), torch.float32, "wrong"),
        (lambda y: torch.where(y == y.max(), torch.nan, y), torch.float32, "wrong"),
        (lambda y: torch.where(y == y.max(), torch.inf, y), torch.float32, "wrong"),
    ],
)
def test_outputs(plant: Plant, dtype: torch.dtype, verdict: str) -> None:
    x = torch.linspace(-1, 1, 1000).to(dtype)
    found = checked(torch.sin, lambda x: plant(torch.sin(x)), x)
    assert found.verdict == verdict, found


class Scaled(torch.autograd.Function):
    """The identity with a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.scale, None


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (lambda m, x: m.last(Scaled.apply(m.norm(m.first(x)), 1.1).relu()), "gradient"),
        (lambda m, x: m.last(m.norm(m.first(x)).detach().relu()), "gradient"),
        (lambda m, x: m(x)["y"].detach(), "output.y"),
    ],
)
def test_wrong_gradients(wrong: Callable[..., torch.Tensor], where: str) -> None:
    model, x = net(), torch.randn(8, 16)

    def compiled(x: torch.Tensor) -> dict[str, Any]:
        y = wrong(model, x)
        loss = y.square().mean()
        return {"loss": loss, "y": y, "shape": tuple(y.shape)}

    found = checked(model, compiled, x, owner=model)
    assert found.verdict == "wrong", found
    assert found.where is not None and (
        found.where.startswith(where) or found.where == "output.loss"
    )
    with torch.no_grad():
        assert checked(model, compiled, x, owner=model).verdict == "same"


def test_a_gradient_that_is_nothing_but_rounding_is_not_wrong() -> None:
    """A bias in front of a batch norm has none; its numbers are noise."""
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).train()
    x = torch.randn(64, 16)

    def compiled(x: torch.Tensor) -> torch.Tensor:
        return model[1](
            (x.double() @ model[0].weight.double().T).float() + model[0].bias
        )

    found = checked(model, compiled, x, owner=model)
    assert found.verdict == "rounding", found
    assert found.error is not None and found.error < 1e-3  # not that of the noise


def test_forgotten_and_repeated_changes() -> None:
    model, x = net(), torch.randn(8, 16)

    def forgets(x: torch.Tensor) -> dict[str, Any]:
        mean = model.norm.running_mean.clone()
        answer = model(x)
        model.norm.running_mean.copy_(mean)
        return answer

    found = checked(model, forgets, x, owner=model)
    assert (found.verdict, found.where) == ("wrong", "buffer norm.running_mean")

    def once(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 0

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).add_(1) * 0

    x = torch.ones(3)
    assert checked(once, once, x).verdict == "same"
    found = checked(once, twice, x)
    assert (found.verdict, found.where) == ("wrong", "input 0")
    assert x.tolist() == [3, 3, 3]  # eager ran twice in all


def test_random_numbers_are_compared_only_where_compiled_code_draws_eagers() -> None:
    from torch._inductor import config

    x = torch.ones(1000)
    drop = nn.Dropout(0.5)
    found = checked(drop, lambda x: drop(x.flip(0)) * 3, x)
    assert found.verdict == "not compared"
    assert "random" in found.why
    assert checked(drop, lambda x: drop(x)[1:], x).verdict == "wrong"
    drop.eval()
    assert checked(drop, drop, x).verdict == "same"
    drop.train()
    with config.patch(fallback_random=True):
        assert checked(drop, drop, x).verdict == "same"
        assert checked(drop, lambda x: drop(x) * 3, x).verdict == "wrong"


def test_shorter_types_within_are_rounding() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))

    def mixed(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return layers(x).float()

    found = checked(mixed, layers.forward, torch.randn(32, 64), owner=layers)
    assert found.verdict == "rounding" and "bfloat16" in (found.tolerance or ""), found


# -- memory, strides and gradients of outputs ------------------------------------------


@pytest.mark.parametrize(
    ("eager", "compiled", "why"),
    [
        (lambda x: x * 1, lambda x: x, "shares memory with input 0"),
        (lambda x: x.t() + 0, lambda x: (x + 0).t().contiguous(), None),
        (lambda x: x + 0, lambda x: (x + 0).t().contiguous().t(), "not contiguous"),
        (lambda x: x[:1] + 0, lambda x: (x[:1] + 0).as_strided((1, 3), (7, 1)), None),
        (lambda x: (x + 0, x + 0), lambda x: (y := x + 0, y), "shares memory with out"),
        (lambda x: (y := x + 0, y.view(-1)), lambda x: (x + 0, (x + 0).view(-1)), None),
    ],
)
def test_outputs_of_another_form(
    eager: Callable[..., Any], compiled: Callable[..., Any], why: str | None
) -> None:
    found = checked(eager, compiled, torch.randn(2, 3))
    assert found.verdict == ("wrong" if why else "same"), found
    assert (why or "") in found.why


# -- tensors of every kind -------------------------------------------------------------

WEIGHT = torch.ones(3, 2)


def dense() -> torch.Tensor:
    return torch.tensor([[1.0, 0, 2], [0, 3, 0]])


def jagged() -> torch.Tensor:
    parts = [torch.ones(2), torch.ones(3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(dense(), 0.1, 0, torch.qint8)


COMPARED: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "coo": (lambda x: x @ WEIGHT, lambda: dense().to_sparse()),
    "csr output": (lambda x: x * 2, lambda: dense().to_sparse_csr()),
    "csr with gradient": (
        lambda x: (x @ WEIGHT).sum(),
        lambda: dense().to_sparse_csr().requires_grad_(),
    ),
    "sparse with gradient": (
        lambda x: x.to_sparse(),
        lambda: dense().requires_grad_(),
    ),
    "empty": (lambda x: x * 2, lambda: torch.sparse_coo_tensor(size=(2, 3))),
    "jagged": (lambda x: x * 2, jagged),
    "quantized": (lambda x: x.dequantize() + 1, quantized),
    "complex": (lambda x: x * 1j, lambda: torch.ones(2, dtype=torch.complex64)),
    "meta": (lambda x: x * 2, lambda: torch.ones(2, device="meta")),
    "no elements": (lambda x: x * 2, lambda: torch.ones(0, 3, requires_grad=True)),
}


def verified_call(function: Any, *args: Any) -> tuple[Any, Any, Any]:
    """The answer of a verified call, its verification and the status."""
    compiled = torchproof.compile(function, backend="aot_eager", verify="first")
    answer = compiled(*args)
    status = torchproof.status(compiled)
    [found] = status.verifications
    return answer, found, status


def plain(value: torch.Tensor) -> Any:
    if value.is_meta:
        return value.shape
    value = value.detach()
    if value.is_nested:
        return [part.tolist() for part in value.unbind()]
    return (value.to_dense() if value.layout is not torch.strided else value).tolist()


@pytest.mark.parametrize("kind", COMPARED)
def test_tensors_of_every_kind_are_compared(kind: str) -> None:
    function, make = COMPARED[kind]
    answer, found = verified(function, function, (make(),), {})
    assert found.verdict == "same", found
    assert plain(answer) == plain(function(make()))
    if kind not in ("meta", "empty", "no elements"):
        wrong = lambda x: function(x).clone().mul_(2)  # noqa: E731
        if kind == "quantized":
            wrong = lambda x: function(x) + 1  # noqa: E731
        _, found = verified(function, wrong, (make(),), {})
        assert found.verdict == "wrong", found


# -- what cannot be compared -----------------------------------------------------------


def numbers() -> Iterator[int]:
    yield 1
    yield 2


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = iter(range(1, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * next(self.source)


NOT_COMPARED: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "generator": (lambda: lambda g, x: x * sum(g), lambda: (numbers(), torch.ones(1))),
    "iterator": (lambda: lambda g, x: x * next(g), lambda: (iter([3]), torch.ones(1))),
    "attribute": (Counting, lambda: (torch.ones(1),)),
    "bits": (
        lambda: lambda x: x,
        lambda: (torch.ones(1, dtype=torch.uint8).view(torch.bits8),),
    ),
    "nested": (
        lambda: lambda x: x * 2,
        lambda: (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),),
    ),
}


@pytest.mark.parametrize("kind", NOT_COMPARED)
def test_what_cannot_be_compared_is_answered_with_a_reason(kind: str) -> None:
    make, arguments = NOT_COMPARED[kind]
    answer, found, status = verified_call(make(), *arguments())
    expected = make()(*arguments())
    if kind == "bits":
        answer, expected = answer.view(torch.uint8), expected.view(torch.uint8)
    assert plain(answer) == plain(expected)
    assert found["verdict"] == "not compared" and found["why"]
    assert status.strategy == "full"


def test_an_error_of_the_comparison_is_no_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("planted")

    for name in ("edges_of", "pull_back", "save_state"):
        with monkeypatch.context() as patch:
            patch.setattr(verification, name, fails)
            answer, found, _ = verified_call(
                lambda x: x + 1, torch.ones(2, requires_grad=True)
            )
        assert answer.tolist() == [2, 2] and found["verdict"] == "not compared"
        assert "planted" in found["why"]
