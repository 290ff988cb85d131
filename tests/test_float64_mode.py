"""The float64 reference: the same program, exactly, with the same random numbers."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from torchproof.measure.numerics import reference, swap_tensors
from torchproof.measure.numerics.reference import Reference

Made = SimpleNamespace  # fn, calls: what holds a target
Program = Callable[[torch.dtype], Made]

_HIDDEN: dict[str, torch.Tensor] = {}


def hidden(name: str) -> torch.Tensor:
    """A tensor that only running the code leads to."""
    return _HIDDEN[name]


def drawn(*shape: int) -> torch.Tensor:
    """Numbers that every type holds exactly enough: drawn in bfloat16."""
    return torch.randn(*shape, dtype=torch.bfloat16)


def run(made: Made) -> dict[str, Any]:
    torch.manual_seed(1)
    output = made.fn(*made.calls)
    found = {"output": output.detach().clone()}
    if output.requires_grad:
        output.sum().backward()
        for index, leaf in enumerate(leaves(made)):
            if leaf.grad is not None:
                found[f"gradient {index}"] = leaf.grad.clone()
    return found


def leaves(made: Made) -> list[torch.Tensor]:
    own = list(made.fn.parameters()) if isinstance(made.fn, nn.Module) else []
    own += getattr(made, "weights", [])
    return own + [call for call in made.calls if isinstance(call, torch.Tensor)]


def refer(program: Program, kind: torch.dtype) -> Reference:
    def make() -> Made:
        torch.manual_seed(0)
        return program(kind)

    return reference(make, run)


def refer_to(
    fn: Callable[..., Any], kind: torch.dtype = torch.float32, shape: Any = (4,)
) -> Reference:
    """The reference of a function of one tensor."""
    return refer(lambda kind: Made(fn=fn, calls=[drawn(*shape).to(kind)]), kind)


# -- programs, each in a type ----------------------------------------------------------


def closure(kind: torch.dtype) -> Made:
    weight = drawn(4, 4).to(kind).requires_grad_()
    return Made(
        fn=lambda x: (x @ weight).exp(),
        calls=[drawn(4, 4).to(kind)],
        weights=[weight],
    )


def unreachable(kind: torch.dtype) -> Made:
    """Attention, by fused kernels on a GPU."""
    shape = (1, 2, 16, 64)
    _HIDDEN.update(key=drawn(*shape).to(kind), value=drawn(*shape).to(kind))
    return Made(
        fn=lambda x: F.scaled_dot_product_attention(
            x, hidden("key"), hidden("value"), is_causal=True
        ),
        calls=[drawn(*shape).to(kind)],
    )


def layers(kind: torch.dtype) -> Made:
    model = nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(6), nn.Flatten()
    )
    model.append(nn.Linear(48, 4))
    return Made(fn=model.to(torch.bfloat16).to(kind), calls=[drawn(5, 3, 8).to(kind)])


def recurrent(kind: torch.dtype) -> Made:
    net = nn.LSTM(4, 4).to(torch.bfloat16).to(kind)
    return Made(fn=lambda x: net(x)[0], calls=[drawn(3, 2, 4).to(kind)])


def embedded(kind: torch.dtype) -> Made:
    table = nn.Embedding(10, 4).to(torch.bfloat16).to(kind)
    return Made(
        fn=lambda i: F.cross_entropy(table(i), i % 4), calls=[torch.arange(8) % 5]
    )


def casts(kind: torch.dtype) -> Made:
    """A model that goes back and forth between types, by hand and by autocast."""
    short = kind if kind is torch.float64 else torch.bfloat16
    weight = drawn(4, 4).to(kind)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = (x.to(short) * 1.1).to(kind) + torch.ones(4, dtype=short) / 3
        with torch.autocast("cpu", torch.bfloat16, enabled=kind is not torch.float64):
            y = F.softmax(y @ weight, -1) @ weight
        return torch.cat([y, torch.zeros(1, 4).to(y)]) + torch.arange(4.0).to(kind)

    return Made(fn=fn, calls=[drawn(4, 4).to(kind)])


def written_unreachable(kind: torch.dtype) -> Made:
    """What is written where nothing leads to stays in its type, the rest is float64."""
    _HIDDEN.update(cache=torch.zeros(4, 4, dtype=kind))

    def fn(x: torch.Tensor) -> torch.Tensor:
        hidden("cache")[torch.tensor([0, 2])] = x[:2]
        hidden("cache").addmm_(x.detach(), x.detach() * 0)
        return hidden("cache").exp() @ x

    return Made(fn=fn, calls=[drawn(4, 4).to(kind)])


def in_place(kind: torch.dtype) -> Made:
    """A view of the argument is written to, and a cache; both are read again."""

    def fn(x: torch.Tensor, row: torch.Tensor, cache: dict[str, Any]) -> torch.Tensor:
        row.mul_(1.1).add_(x[1])
        cache["seen"][torch.tensor([0, 2])] = x[:2] / 3
        return x.exp() + cache["seen"].cumsum(0)

    x = drawn(4, 4).to(kind)
    return Made(fn=fn, calls=[x, x[0], {"seen": torch.zeros(4, 4, dtype=kind)}])


def complex_numbers(kind: torch.dtype) -> Made:
    return Made(
        fn=lambda x: torch.fft.fft(x).abs() + torch.polar(x.exp(), x).real,
        calls=[drawn(4, 8).to(kind)],
    )


def recomputed(kind: torch.dtype) -> Made:
    weight = drawn(4, 4).to(kind).requires_grad_()

    def fn(x: torch.Tensor) -> Any:
        return checkpoint(
            lambda y: (y @ weight).tanh() @ weight, x, use_reentrant=False
        )

    return Made(fn=fn, calls=[drawn(4, 4).to(kind).requires_grad_()])


def optimised(kind: torch.dtype) -> Made:
    model = nn.Linear(4, 4).to(torch.bfloat16).to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model(x)

    return Made(fn=fn, calls=[drawn(4, 4).to(kind)])


PROGRAMS = (closure, unreachable, layers, recurrent, embedded, casts, in_place)
PROGRAMS += (written_unreachable, complex_numbers, recomputed, optimised)


def on_devices(functions: Sequence[Any], also_on_gpu: Sequence[Any]) -> Any:
    """Parameters `fn` and `device`; what torch recommends on a GPU is no error."""
    marks = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
    cases = [pytest.param(fn, "cpu", id=fn.__name__) for fn in functions]
    cases += [
        pytest.param(fn, "cuda", id=f"{fn.__name__}-gpu", marks=marks)
        for fn in also_on_gpu
    ]
    return pytest.mark.parametrize(("fn", "device"), cases)


@on_devices(PROGRAMS, [unreachable, layers, casts])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_the_reference_is_the_program_in_float64(
    fn: Program, device: str, kind: torch.dtype
) -> None:
    if fn is complex_numbers and kind is torch.bfloat16:
        pytest.skip("no complex numbers of two bfloat16")
    with torch.device(device):
        result = refer(fn, kind)
        assert result.exact is not None, result.why
        torch.manual_seed(0)
        expected = run(fn(torch.float64))
    assert result.exact.keys() == expected.keys() == result.eager.keys()
    for label, value in expected.items():
        assert_close(result.exact[label], value, rtol=1e-12, atol=1e-12)
    assert not torch.equal(result.eager["output"].double(), expected["output"])
    assert not result.draws


# -- random numbers --------------------------------------------------------------------


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5) + torch.zeros_like(x)


def dropped_without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return F.dropout(x.clone(), 0.5).clone()


def noisy(x: torch.Tensor) -> torch.Tensor:
    noise = torch.rand_like(x) + torch.randn(4, dtype=x.dtype) + torch.rand(4)
    return noise.to(x) + torch.empty_like(x).uniform_()


def picked(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(x.sigmoid()) + torch.randperm(4) + torch.normal(x, x.exp())


def attended(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)


@on_devices(
    [dropped, dropped_without_gradients, noisy, picked, attended], [dropped, noisy]
)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_float64_draws_the_same_random_numbers(
    fn: Callable[[torch.Tensor], torch.Tensor], device: str, kind: torch.dtype
) -> None:
    with torch.device(device):
        result = refer_to(fn, kind, (4, 4))
    assert result.draws
    assert result.exact is not None, result.why
    exact, eager = result.exact["output"], result.eager["output"]
    assert exact.dtype == torch.float64
    few = 8 * torch.finfo(kind).eps
    assert_close(exact, eager.double(), rtol=few, atol=few)


def test_attention_and_dropout_that_drop_nothing_draw_nothing() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = F.scaled_dot_product_attention(x[None], x[None], x[None])
        return F.dropout(y, 0.5, training=False)

    result = refer_to(fn, shape=(4, 4))
    assert result.exact is not None and not result.draws


def test_other_random_numbers_in_float64_are_no_reference() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + (torch.rand(4) if x.dtype == torch.float32 else torch.randn(4))

    result = refer_to(fn)
    assert result.exact is None
    assert "float64" in result.why and "random" in result.why


# -- what cannot be exact --------------------------------------------------------------


@torch.library.custom_op("test_double::short", mutates_args=())
def short_only(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        raise RuntimeError("short numbers only")
    return x * 2


def test_where_float64_cannot_run_it_says_why() -> None:
    def bits(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int32) + 1

    def op(x: torch.Tensor) -> torch.Tensor:
        return short_only(x)

    for fn, why in ((bits, "bits"), (op, "short numbers only")):
        made = Made(fn=fn, calls=[torch.ones(4)])
        result = reference(lambda made=made: made, run)
        assert result.exact is None and why in result.why
        assert made.calls[0].dtype == torch.float32
        assert result.compare(result.eager).verdict == "same"
        assert result.compare({"output": result.eager["output"] + 1}).verdict == "wrong"


def test_a_target_with_too_many_objects_has_no_float64_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is partly in float32 would be no reference."""
    monkeypatch.setattr(swap_tensors, "_MOST_OBJECTS", 5)
    result = refer(layers, torch.float32)
    assert result.exact is None and "TooManyObjects" in result.why
    assert result.compare(result.eager).verdict == "same"


def test_everything_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {k: (v, v.clone()) for k, v in model.state_dict(keep_vars=True).items()}
    x = torch.randn(8, 4)
    values = x.clone()

    def made() -> Made:
        model.zero_grad()  # every load has the same gradients
        next(model.parameters()).grad = torch.ones(4, 4)
        return Made(fn=model.eval(), calls=[x])

    result = reference(made, run)
    assert result.exact is not None and len(result.perturbed()) == 4
    for name, now in model.state_dict(keep_vars=True).items():
        assert now is before[name][0] and torch.equal(now, before[name][1])
    assert torch.equal(x, values)
    assert next(model.parameters()).grad.dtype == torch.float32


def test_nudged_runs_are_a_rounding_away_and_keep_whole_numbers() -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(mask == 0, float("-inf")) * mask

    x, mask = torch.randn(100), torch.ones(100)
    result = reference(lambda: Made(fn=fn, calls=[x, mask]), run)
    runs = [answers["output"] for answers in result.perturbed()]
    for near in runs:
        assert not torch.equal(near, x)
        assert_close(near, x, rtol=3e-7, atol=0.0)
    assert not torch.equal(runs[0], runs[1])


def test_nudged_runs_keep_fp8_weights() -> None:
    def fn(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return weight.to(x.dtype) * x

    weight, x = torch.randn(100).to(torch.float8_e4m3fn), torch.randn(100)
    result = reference(lambda: Made(fn=fn, calls=[weight, x]), run)
    assert result.exact is not None and result.exact["output"].dtype == torch.float64
    for answers in result.perturbed():
        assert not torch.equal(answers["output"], result.eager["output"])
        assert_close(answers["output"], result.eager["output"], rtol=3e-7, atol=1e-7)


def test_a_target_whose_float64_takes_another_way_is_judged_by_eager() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.exp() if x.dtype == torch.float32 else x.exp()[:2]

    result = refer_to(fn)
    assert result.exact is not None
    assert result.compare(result.eager).reference == "eager"
