"""Verdicts on answers: wrong outputs are caught, rounding is excused."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from torchproof.torch_private.comparison import (
    EXCUSE,
    Comparison,
    compare,
    compare_tensors,
    tolerance_for,
)

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def one(output: Any, eager: Any, exact: Any = None, *perturbed: Any) -> Comparison:
    """The verdict on a single answer."""
    return compare(
        {"output": output},
        {"output": eager},
        None if exact is None else {"output": exact},
        perturbed=lambda: [{"output": other} for other in perturbed],
    )


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64)


def rounded(exact: torch.Tensor, seed: int, roundings: float = 4) -> torch.Tensor:
    """float32 answers with noise of one size everywhere, as a product of matrices."""
    noise = randn(*exact.shape, seed=seed) * torch.finfo(F32).eps * roundings
    return (exact + noise).to(F32)


# -- verdicts --------------------------------------------------------------------------

Case = tuple[str, str, tuple[Any, ...]]


def wrong_cases() -> Iterator[Case]:
    """What is compared, its verdict, and the arguments of `one`."""
    exact = randn(4096).exp() ** 8
    eager, output = (
        (exact * (1 + randn(4096, seed=seed) * 1e-6)).to(F32) for seed in (1, 2)
    )
    yield "errors of twenty orders of magnitude", "rounding", (output, eager, exact)
    small = output.clone()
    small[int(exact.abs().argmin())] *= 2
    yield "a small element beside large ones", "wrong", (small, eager, exact)
    exact = randn(1000)
    output, eager = (exact * 1.001).to(F32), exact.to(F32)
    yield "a systematic error, small in each part", "wrong", (output, eager, exact)
    left, right = randn(64, 64), randn(64, 64, seed=1)
    output = (left.to(BF16) @ right.to(BF16)).to(F32)
    eager = left.to(F32) @ right.to(F32)
    yield "computed in a shorter type", "wrong", (output, eager, left @ right)
    eager = torch.tensor([math.inf, -math.inf, 1.0])
    yield "infinities", "same", (eager.clone(), eager, eager.to(F64))
    yield "infinities of the other sign", "wrong", (-eager, eager, eager.to(F64))
    sparse = torch.eye(4).to_sparse()
    yield "a sparse tensor", "same", (sparse, sparse.clone(), sparse.to(F64))
    yield "another sparse tensor", "wrong", (sparse * 2, sparse, sparse.to(F64))
    yield "an empty tensor", "same", (torch.empty(0),) * 3


def rounding_cases() -> Iterator[Case]:
    eager = randn(100).to(F32)
    near = torch.nextafter(eager, torch.tensor(math.inf))
    yield "a rounding from eager", "same", (near, eager, eager.to(F64))
    yield "eager's own, without float64", "same", (eager.clone(), eager)
    for size in (1, 3, 30, 3000):
        runs = [(randn(size, seed=s) * 1e-8).to(F32) for s in range(1, 7)]
        answers = (runs[0], runs[1], randn(size) * 1e-18, *runs[2:])
        yield f"gradients of {size} that cancel", "rounding", answers
    exact = torch.tensor(0.693147, dtype=F64)  # eager happens to be exact
    output, eager = (exact + 3e-5).to(F32), exact.to(F32)
    runs = [(exact + by).to(F32) for by in (1e-5, -2e-5, 4e-5, 5e-6)]
    yield "an exact eager alone", "wrong", (output, eager, exact)
    yield "an exact eager by chance", "rounding", (output, eager, exact, *runs)
    yield "beyond all runs", "wrong", (output + 0.01, eager, exact, *runs)
    eager, *runs = (rounded(randn(1000), s, 200) for s in range(6))
    yield "no float64", "wrong", (runs[0], eager)
    yield "no float64, other runs", "rounding", (runs[0], eager, None, *runs[1:])
    output = runs[0].clone()
    output[0] += 1
    yield "no float64, off by one", "wrong", (output, eager, None, *runs[1:])
    before = randn(1000) - 1
    exact, live = before.relu(), before > 0
    eager, output = (
        torch.where(live, rounded(exact, seed), exact).to(F32) for seed in (1, 2)
    )
    for off, verdict in ((1e-7, "rounding"), (1e-2, "wrong")):  # at the kink of relu
        output[int((~live).int().argmax())] = off
        yield f"{off} instead of 0", verdict, (output.clone(), eager, exact)
    exact = torch.arange(1000)
    eager, output = exact.clone(), exact.clone()
    eager[:3] += 1
    output[3:5] += 1
    yield "as many ties as eager", "rounding", (output.clone(), eager, exact)
    output[:100] += 1
    yield "more ties than eager", "wrong", (output, eager, exact)
    x = torch.tensor([300.0, 2.0], dtype=torch.float16)
    eager, exact = x * x * 1e-3, x.to(F64) ** 2 * 1e-3
    yield "eager alone overflows", "rounding", (exact.to(x.dtype), eager, exact)
    output = torch.tensor([45.0, 0.004]).to(x.dtype)
    yield "half of what overflows", "wrong", (output, eager, exact)


@pytest.mark.parametrize(
    ("verdict", "answers"),
    [
        pytest.param(verdict, answers, id=name)
        for name, verdict, answers in (*wrong_cases(), *rounding_cases())
    ],
)
def test_verdicts(verdict: str, answers: tuple[Any, ...]) -> None:
    found = one(*answers)
    assert found.verdict == verdict
    if len(answers) > 2 and verdict == "rounding":
        reference = "eager" if answers[2] is None else "float64"
        assert found.reference == reference


# -- wrong outputs ---------------------------------------------------------------------


def test_one_wrong_element_in_a_million_is_caught() -> None:
    exact = randn(1_000_000)
    eager, output = rounded(exact, 1), rounded(exact, 2)
    assert one(output, eager, exact).verdict == "rounding"
    output[271_828] += 0.001
    result = one(output, eager, exact)
    assert result.verdict == "wrong"
    assert "1 of 1000000 elements" in result.why and "element 271828" in result.why


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [BF16, F32, F64, torch.complex64])
def test_nan_and_infinity_never_pass(value: float, kind: torch.dtype) -> None:
    eager = randn(8).to(kind)
    output = eager.clone()
    output[3] = value
    result = one(output, eager, eager.to(F64) if kind.is_floating_point else None)
    assert result.verdict == "wrong"
    assert ("NaN" if math.isnan(value) else "infinity") in result.why


def test_nan_of_eager_cannot_be_judged_and_hides_nothing() -> None:
    exact = randn(8)
    eager = exact.to(F32)
    eager[2] = math.nan
    result = one(eager.clone(), eager, exact)
    assert result.verdict is None and re.search(r"\beager\b.*\bNaN\b", result.why)
    output = eager.clone()
    output[5] += 1
    assert one(output, eager, exact).verdict == "wrong"


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (torch.ones(3, dtype=F64), r"dtype .*torch\.float64"),
        (torch.ones(3, 1), r"shape .*\[3, 1\].*\[3\]"),
        (1.0, r"\bfloat\b.*\bTensor\b"),
        (None, "NoneType"),
    ],
)
def test_another_form_is_wrong(output: Any, why: str) -> None:
    result = one(output, torch.ones(3), torch.ones(3, dtype=F64))
    assert result.verdict == "wrong" and re.search(why, result.why)


def test_an_answer_too_many_or_too_few_is_wrong() -> None:
    both = {"output": torch.ones(2), "gradient of w": torch.ones(2)}
    less = {"output": torch.ones(2)}
    assert compare(less, both, both).where == "gradient of w"
    assert compare(both, less, less).verdict == "wrong"
    assert compare({}, {}, {}).verdict is None


@pytest.mark.parametrize(
    ("output", "eager"), [("a", "b"), (3, 4), (True, False), (None, "x"), (0.5, 0.6)]
)
def test_plain_values_are_compared(output: Any, eager: Any) -> None:
    assert one(eager, eager, eager).verdict == "same"
    assert one(output, eager, eager).verdict == "wrong"


def test_integers_differ_where_eager_is_sure() -> None:
    eager = torch.arange(100)
    output = eager.clone()
    output[7] = 0
    result = one(output, eager, eager)
    assert result.verdict == "wrong"
    assert re.search(r"\b7\b.*\b0\b.*\beager\b.*\b7\b", result.why)
    assert one(output, eager).verdict == "wrong"


# -- rounding --------------------------------------------------------------------------


def test_fewer_roundings_than_eager_are_excused() -> None:
    x = randn(4096)
    eager = ((x.to(BF16) * 3.1 + 1.7).sin() * x.to(BF16)) - x.to(BF16).cos()
    exact = (x.to(BF16).to(F64) * 3.1 + 1.7).sin() * x.to(BF16) - x.to(BF16).cos()
    assert one(exact.to(BF16), eager, exact).verdict == "rounding"
    result = one(exact.to(BF16), eager, exact)
    assert result.max_rel_error is not None and result.eager_error is not None
    assert result.max_rel_error < result.eager_error


def test_nudged_runs_are_asked_for_only_in_doubt() -> None:
    perturbations = []

    def perturbed() -> list[dict[str, Any]]:
        perturbations.append(True)
        return []

    exact = randn(1000)
    output = {"output": rounded(exact, 1)}
    compare(
        output, {"output": rounded(exact, 2)}, {"output": exact}, perturbed=perturbed
    )
    assert not perturbations
    compare(
        {"output": output["output"] + 1}, output, {"output": exact}, perturbed=perturbed
    )
    assert perturbations == [True]


def test_what_is_shown_is_the_largest_error_that_means_something() -> None:
    exact = {"loss": randn(10), "gradient of bias": randn(10) * 1e-20}
    eager = {"loss": rounded(exact["loss"], 1), "gradient of bias": noise(1)}
    output = {"loss": rounded(exact["loss"], 2), "gradient of bias": noise(2)}
    result = compare(output, eager, exact)
    assert (result.verdict, result.where) == ("rounding", "loss")
    assert result.max_rel_error is not None and result.max_rel_error < 1e-5
    assert result.to_json()["reference"] == "float64"


def noise(seed: int) -> torch.Tensor:
    return (randn(10, seed=seed) * 1e-8).to(F32)


@pytest.mark.slow
def test_noise_rarely_passes_for_a_lie() -> None:
    """Of 300 pairs with the same noise, of all sizes, none is called wrong."""
    for seed in range(300):
        exact = randn(2 ** (seed % 12), seed=seed) * 10.0 ** (seed % 7)
        spread = torch.finfo(F32).eps * 16 * exact.abs().amax()
        runs = [
            (exact + randn(*exact.shape, seed=seed * 10 + k) * spread).to(F32)
            for k in range(6)
        ]
        result = one(runs[0], runs[1], exact, *runs[2:])
        assert result.verdict in ("same", "rounding"), (seed, result)


@pytest.mark.slow
def test_a_lie_beyond_what_is_excused_never_passes_for_noise() -> None:
    for seed in range(100):
        exact = randn(2 ** (seed % 12), seed=seed)
        runs = [rounded(exact, seed * 10 + k) for k in range(6)]
        largest = max(float((run - exact).abs().amax()) for run in runs[1:])
        runs[0][seed % len(exact)] += 3 * EXCUSE * largest + 1e-5
        assert one(runs[0], runs[1], exact, *runs[2:]).verdict == "wrong", seed


# -- within a tolerance ----------------------------------------------------------------


def gradient_of_output_layer() -> tuple[Tensor, Tensor]:
    """A gradient with a few large rows, and the same with noise of their size."""
    generator = torch.Generator().manual_seed(0)
    gradient = 1e-6 * torch.randn(4000, 64, generator=generator)
    gradient[:40] *= 1e3
    noise = 0.1 * torch.randn(4000, 64, generator=generator)
    noisy = gradient + noise * gradient.square().mean(-1, keepdim=True).sqrt()
    return gradient.bfloat16(), noisy.bfloat16()


def judged(output: Tensor, eager: Tensor) -> Comparison:
    tolerance = tolerance_for([torch.bfloat16], [], gradients=True)
    return compare_tensors(output, eager, None, tolerance=tolerance)


def test_errors_are_allowed_by_the_size_of_their_row() -> None:
    gradient, noisy = gradient_of_output_layer()
    assert judged(noisy, gradient).verdict == "rounding"


@pytest.mark.parametrize("row", [3, 3000])
def test_a_wrong_element_is_caught_in_large_and_small_rows(row: int) -> None:
    gradient, noisy = gradient_of_output_layer()
    noisy[row, 7] = 5 * gradient.abs().max() if row < 40 else 5e-4
    assert judged(noisy, gradient).verdict == "wrong"


@pytest.mark.parametrize(
    ("output", "eager", "how"),
    [
        (torch.tensor([1.0, math.nan]), torch.ones(2), "nan"),
        (torch.tensor([1.0, math.inf]), torch.ones(2), "infinity"),
        (torch.ones(2, dtype=F64), torch.ones(2), "form"),
        (torch.ones(3), torch.ones(2), "form"),
        (2 * torch.ones(2), torch.ones(2), "value"),
        ("a", "b", "value"),
    ],
)
def test_a_wrong_output_says_what_is_wrong(output: Any, eager: Any, how: str) -> None:
    found = one(output, eager)
    assert (found.verdict, found.how, found.to_json()["how"]) == ("wrong", how, how)
