"""Planted errors are found, rounding is not called one, and the caller has eager's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchproof.runtime.verification import Verification, verified

Plant = Callable[[torch.Tensor], torch.Tensor]


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


def test_the_call_ends_as_if_only_eager_had_run() -> None:
    model, twin, x = net(), net(), torch.randn(8, 16)
    twin.load_state_dict(model.state_dict())
    calls = []

    def compiled(x: torch.Tensor) -> dict[str, Any]:
        calls.append(1)
        torch.rand(3)
        return model(x)

    state = torch.get_rng_state()
    answer, found = verified(model, compiled, (x,), {}, owner=model)
    assert found.verdict == "same", found
    assert len(calls) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    expected = twin(x)
    for wanted, given in zip(twin.buffers(), model.buffers(), strict=True):
        assert torch.equal(wanted, given)
    answer["loss"].backward()
    expected["loss"].backward()
    for wanted, given in zip(twin.parameters(), model.parameters(), strict=True):
        assert (wanted.grad is None) == (given.grad is None)
        assert wanted.grad is None or torch.equal(wanted.grad, given.grad)


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


def test_interrupted_compiled_code_leaves_no_trace() -> None:
    model, x = net(), torch.randn(8, 16)

    def interrupted(x: torch.Tensor) -> None:
        model(x)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checked(model, interrupted, x, owner=model)
    assert model.norm.num_batches_tracked == 0


def test_a_change_in_place_of_a_result_does_not_enter_its_history() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(3) * x

    leaf = torch.full((4,), 2.0, requires_grad=True)
    answer, found = verified(forward, forward, (leaf * 1,), {})
    assert found.verdict == "same", found
    answer.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [36.0] * 4


# -- planted errors, each with a clean twin --------------------------------------------


def off_by(share: float, at: int = 7) -> Plant:
    def plant(y: torch.Tensor) -> torch.Tensor:
        factor = torch.ones_like(y).flatten()
        factor[at] += share
        return y * factor.reshape(y.shape)

    return plant


def swapped_nan(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y == y.max(), torch.nan, y)


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
        (swapped_nan, torch.float32, "wrong"),
        (lambda y: torch.where(y == y.max(), torch.inf, y), torch.float32, "wrong"),
    ],
)
def test_outputs(plant: Plant, dtype: torch.dtype, verdict: str) -> None:
    x = torch.linspace(-1, 1, 1000).to(dtype)
    found = checked(torch.sin, lambda x: plant(torch.sin(x)), x)
    assert found.verdict == verdict, found
    assert (found.repro is not None) == (verdict == "wrong")


def test_special_numbers_in_the_same_places_are_the_same() -> None:
    x = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf])
    assert checked(torch.relu, torch.relu, x).verdict == "same"
    other = torch.tensor([torch.nan, 1.0, torch.inf, -torch.inf])
    found = checked(lambda x: x * 1, lambda x: other, x)
    assert (found.verdict, found.where) == ("wrong", "output")


def test_integers_and_truth_values_are_compared_exactly() -> None:
    x = torch.arange(1000)
    assert checked(lambda x: x + 1, lambda x: x + 1, x).verdict == "same"
    found = checked(lambda x: x + 1, lambda x: x + (x != 500), x)
    assert found.verdict == "wrong"
    assert "1 of 1000" in found.why
    assert checked(lambda x: x > 3, lambda x: x > 4, x).verdict == "wrong"
    assert checked(lambda x: len(x), lambda x: len(x) + 1, x).verdict == "wrong"


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


# -- precision -------------------------------------------------------------------------


class Mixed(nn.Module):
    """float32 in and out, shorter within."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.layers(x)
        return y.float()


def test_shorter_types_within_are_rounding() -> None:
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(32, 64)
    exact = model.layers.forward
    found = checked(model, lambda x: exact(x), x, owner=model)
    assert found.verdict == "rounding", found
    assert "bfloat16" in (found.tolerance or "")
    short = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).bfloat16()

    def upcast(x: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in short:
            y = y.float() @ layer.weight.float().T + layer.bias.float()
        return y.bfloat16()

    found = checked(short, upcast, x.bfloat16(), owner=short)
    assert found.verdict == "rounding", found


def test_checkpointed_batch_norm_is_updated_once() -> None:
    model, x = net(), torch.randn(8, 16)

    def forward(x: torch.Tensor) -> Any:
        return checkpoint(model, x, use_reentrant=False)["y"]

    assert checked(forward, forward, x, owner=model).verdict == "same"
    assert model.norm.num_batches_tracked == 1

    def reentrant(x: torch.Tensor) -> Any:
        return checkpoint(lambda x: model(x)["y"], x, use_reentrant=True)

    found = checked(reentrant, reentrant, x.requires_grad_(), owner=model)
    assert found.verdict == "same"
    assert "gradients" in found.notes[0]


def test_what_a_repro_needs_is_named() -> None:
    x = torch.ones(4, 6)[:, ::2]
    found = checked(lambda x, n: x * n, lambda x, n: x, x, 3)
    assert found.repro is not None
    tensor, number = found.repro.inputs
    assert (tensor.shape, tensor.stride, tensor.dtype) == ((4, 3), (6, 2), "float32")
    assert number.value == "3"
    assert found.repro.random["seed"] == str(torch.initial_seed())


def test_memory_that_suffices_for_eager_alone() -> None:
    calls = []

    def eager(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return x + 1

    answer, found = verified(eager, torch.sin, (torch.ones(1),), {})
    assert answer.tolist() == [2]
    assert found.verdict == "not compared"


def test_compiled_code_that_is_right() -> None:
    model, x = net(), torch.randn(8, 16)
    compiled = torch.compile(model.forward, backend="aot_eager")
    found = checked(model.forward, compiled, x, owner=model)
    assert found.verdict in ("same", "rounding"), found
    assert found.notes == ()
    torch._dynamo.reset()


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


def test_a_view_of_an_input_that_compiled_code_copies_is_noted() -> None:
    found = checked(lambda x: x.view(-1), lambda x: x.reshape(-1) + 0, torch.ones(2, 3))
    assert found.verdict == "same"
    assert any("does not share memory with input 0" in note for note in found.notes)
