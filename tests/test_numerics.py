"""Verdicts on answers: wrong outputs are caught, rounding is excused."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

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


# -- wrong outputs ---------------------------------------------------------------------


def test_one_wrong_element_in_a_million_is_caught() -> None:
    exact = randn(1_000_000)
    eager, output = rounded(exact, 1), rounded(exact, 2)
    assert one(output, eager, exact).verdict == "rounding"
    output[271_828] += 0.001
    result = one(output, eager, exact)
    assert result.verdict == "wrong"
    assert "1 of 1000000 elements" in result.why and "element 271828" in result.why


def test_a_small_wrong_element_is_not_excused_by_large_ones() -> None:
    exact = randn(4096).exp() ** 8  # twenty orders of magnitude, each with its error
    eager = (exact * (1 + randn(4096, seed=1) * 1e-6)).to(F32)
    output = (exact * (1 + randn(4096, seed=2) * 1e-6)).to(F32)
    assert one(output, eager, exact).verdict == "rounding"
    small = int(exact.abs().argmin())
    output[small] *= 2
    assert one(output, eager, exact).verdict == "wrong"


def test_a_systematic_error_is_wrong_though_each_part_is_small() -> None:
    exact = randn(1000)
    assert one((exact * 1.001).to(F32), exact.to(F32), exact).verdict == "wrong"


def test_computing_in_a_shorter_type_is_wrong() -> None:
    exact = randn(64, 64) @ randn(64, 64, seed=1)
    eager = (randn(64, 64).to(F32) @ randn(64, 64, seed=1).to(F32)).to(F32)
    short = (randn(64, 64).to(BF16) @ randn(64, 64, seed=1).to(BF16)).to(F32)
    assert one(short, eager, exact).verdict == "wrong"


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


def test_an_infinity_of_the_other_sign_is_wrong() -> None:
    eager = torch.tensor([math.inf, -math.inf, 1.0])
    assert one(eager.clone(), eager, eager.to(F64)).verdict == "same"
    assert one(-eager, eager, eager.to(F64)).verdict == "wrong"


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


def test_a_few_roundings_from_eager_are_the_same() -> None:
    eager = randn(100).to(F32)
    near = torch.nextafter(eager, torch.tensor(math.inf))
    assert one(near, eager, eager.to(F64)).verdict == "same"
    assert one(eager.clone(), eager).verdict == "same"


def test_fewer_roundings_than_eager_are_excused() -> None:
    x = randn(4096)
    eager = ((x.to(BF16) * 3.1 + 1.7).sin() * x.to(BF16)) - x.to(BF16).cos()
    exact = (x.to(BF16).to(F64) * 3.1 + 1.7).sin() * x.to(BF16) - x.to(BF16).cos()
    assert one(exact.to(BF16), eager, exact).verdict == "rounding"
    result = one(exact.to(BF16), eager, exact)
    assert result.max_rel_error is not None and result.eager_error is not None
    assert result.max_rel_error < result.eager_error


@pytest.mark.parametrize("size", [1, 3, 30, 3000])
def test_a_gradient_that_cancels_is_nothing_but_rounding(size: int) -> None:
    exact = randn(size) * 1e-18
    runs = [(randn(size, seed=s) * 1e-8).to(F32) for s in range(1, 7)]
    result = one(runs[0], runs[1], exact, *runs[2:])
    assert result.verdict == "rounding"


def test_an_eager_that_happens_to_be_exact_is_no_measure() -> None:
    """A scalar on which eager happens to be exact, as other roundings show."""
    exact = torch.tensor(0.693147, dtype=F64)
    output, eager = (exact + 3e-5).to(F32), exact.to(F32)
    near = [(exact + by).to(F32) for by in (1e-5, -2e-5, 4e-5, 5e-6)]
    assert one(output, eager, exact).verdict == "wrong"
    assert one(output, eager, exact, *near).verdict == "rounding"
    assert one(output + 0.01, eager, exact, *near).verdict == "wrong"


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


def test_without_float64_the_nudged_runs_tell_the_error() -> None:
    exact = randn(1000)
    eager, *near = (rounded(exact, s, 200) for s in range(6))
    assert one(near[0], eager).verdict == "wrong"
    result = one(near[0], eager, None, *near[1:])
    assert (result.verdict, result.reference) == ("rounding", "eager")
    near[0][0] += 1
    assert one(near[0], eager, None, *near[1:]).verdict == "wrong"


def test_zeros_of_a_kink_are_off_by_the_noise_before_it() -> None:
    before = randn(1000) - 1
    exact = before.relu()
    eager, output = exact.to(F32), exact.to(F32)
    live = exact > 0
    eager[live] = rounded(exact, 1)[live]
    output[live] = rounded(exact, 2)[live]
    output[int((~live).int().argmax())] = 1e-7
    assert one(output, eager, exact).verdict == "rounding"
    output[int((~live).int().argmax())] = 1e-2
    assert one(output, eager, exact).verdict == "wrong"


def test_ties_are_excused_as_often_as_eager_has_them() -> None:
    exact = torch.arange(1000)
    eager, output = exact.clone(), exact.clone()
    eager[:3] += 1
    output[3:5] += 1
    assert one(output, eager, exact).verdict == "rounding"
    output[:100] += 1
    assert one(output, eager, exact).verdict == "wrong"


def test_overflow_on_the_way_is_eagers_own() -> None:
    half = torch.float16
    x = torch.tensor([300.0, 2.0], dtype=half)
    eager, exact = x * x * half_of(1e-3), x.to(F64) * x.to(F64) * 1e-3
    assert eager[0] == math.inf
    assert one(exact.to(half), eager, exact).verdict == "rounding"
    assert one(torch.tensor([45.0, 0.004], dtype=half), eager, exact).verdict == "wrong"


def half_of(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float16)


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


def test_sparse_and_empty_answers() -> None:
    sparse = torch.eye(4).to_sparse()
    assert one(sparse, sparse.clone(), sparse.to(F64)).verdict == "same"
    assert one(sparse * 2, sparse, sparse.to(F64)).verdict == "wrong"
    assert one(torch.empty(0), torch.empty(0), torch.empty(0)).verdict == "same"
    assert_close(sparse.to_dense(), torch.eye(4))


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
