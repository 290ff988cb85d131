"""Arguments that differ in more than shape and dtype: answers are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchproof
from torchproof.runtime.cudagraph.recorder import (
    Clones,
    OutputCopies,
    StepResult,
    compare_results,
)
from torchproof.runtime.tensors import strides

SIZE = 4


def square(offset: float = 0.0) -> Tensor:
    return torch.arange(float(SIZE * SIZE)).view(SIZE, SIZE) + offset


FORMS: dict[str, Callable[[], Tensor]] = {
    "contiguous": square,
    "transposed": lambda: square(1).t(),
    "columns": lambda: torch.randn(SIZE, 2 * SIZE)[:, :SIZE],
    "every second column": lambda: torch.randn(SIZE, 2 * SIZE)[:, ::2],
    "later rows": lambda: torch.randn(3 * SIZE, SIZE)[SIZE : 2 * SIZE],
    "expanded": lambda: torch.randn(1, SIZE).expand(SIZE, SIZE),
    "expanded column": lambda: torch.randn(SIZE, 1).expand(SIZE, SIZE),
    "windows": lambda: torch.randn(2 * SIZE - 1).unfold(0, SIZE, 1),
    "one number": lambda: torch.randn(()).expand(SIZE, SIZE),
}


def by_layout(x: Tensor) -> Tensor:
    return x + 1 if x.is_contiguous() else x * 3


def by_strides(x: Tensor) -> Tensor:
    return x * float(x.stride(0)) + float(x.stride(1))


def restrided(x: Tensor) -> Tensor:
    return x.as_strided((SIZE,), (1,)) * 2


def restrided_rows(x: Tensor) -> Tensor:
    return x.as_strided((2, SIZE - 1), (SIZE, 1)) * 2


def from_the_start(x: Tensor) -> Tensor:
    return x.as_strided((SIZE,), (1,), 0) * 2


def by_offset(x: Tensor) -> Tensor:
    return x + float(x.storage_offset())


def by_storage(x: Tensor) -> Tensor:
    return x + float(x.untyped_storage().nbytes())


def viewed(x: Tensor) -> tuple[Tensor, ...]:
    return x, x.t(), x[:, 1:], x[:, ::2], x[:1].expand(SIZE, SIZE), x.diagonal()


def computed(x: Tensor) -> tuple[Tensor, ...]:
    return x * 2, (x * 2).t(), torch.empty_like(x).fill_(1), x.contiguous() + x


STEPS = (
    *(by_layout, by_strides, restrided, restrided_rows, from_the_start, by_offset),
    *(by_storage, viewed, computed),
)


def outcome(step: Callable[..., Any], *args: Any) -> Any:
    """The values and strides of the outputs, or the error."""
    try:
        given = step(*args)
    except RuntimeError as error:
        return type(error)
    tensors = given if isinstance(given, tuple) else (given,)
    return [(each.tolist(), each.stride()) for each in tensors]


@pytest.mark.parametrize("step", STEPS)
def test_every_form_of_an_argument_is_answered_as_in_eager(
    step: Callable[..., Any],
) -> None:
    graphed = torchproof.graph(step)
    for _ in range(2):
        for name, form in FORMS.items():
            x = form()
            assert outcome(graphed, x) == outcome(step, x), name
    assert graphed.status().replays > 0


def test_forms_are_recorded_once_and_then_replayed() -> None:
    graphed = torchproof.graph(by_strides)
    for _ in range(3):
        for form in FORMS.values():
            graphed(form())
    status = graphed.status()
    # Rows of a larger tensor, and its first half, lie in memory as a whole one.
    assert status.recordings == len(FORMS) - 1
    assert status.replays == status.calls and status.stops == ()


def test_slices_of_one_tensor_share_a_recording() -> None:
    """The offset counts only if the step looks at it."""
    graphed = torchproof.graph(computed)
    data = torch.randn(6, SIZE, SIZE)
    for x in data:
        assert outcome(graphed, x) == outcome(computed, x)
    assert (graphed.status().recordings, graphed.status().replays) == (1, 6)


@pytest.mark.parametrize("form", FORMS)
def test_a_written_argument_is_written(form: str) -> None:
    def step(x: Tensor) -> Tensor:
        x[0].add_(1)
        return x * 2

    graphed = torchproof.graph(step)
    for _ in range(2):
        x = FORMS[form]()
        twin = strides.clone(x, x.stride())
        assert outcome(graphed, x) == outcome(step, twin)
        assert torch.equal(x, twin)


def test_pending_conjugations_and_negations() -> None:
    def step(x: Tensor) -> Tensor:
        return x * (2 if x.is_conj() else 3) * (5 if x.is_neg() else 7)

    graphed = torchproof.graph(step)
    for _ in range(2):
        z = torch.randn(3, 2, dtype=torch.complex64)
        for x in (z, z.conj(), z.t().conj(), z.imag, z.conj().imag, z.conj().imag.t()):
            torch.testing.assert_close(graphed(x), step(x))
    assert graphed.status().replays == graphed.status().calls


def test_channels_last_images() -> None:
    convolution = torch.nn.Conv2d(3, 4, 3)
    graphed = torchproof.graph(convolution)
    for form in (torch.contiguous_format, torch.channels_last) * 2:
        x = torch.randn(2, 3, 5, 5).contiguous(memory_format=form)
        given, expected = graphed(x), convolution(x)
        assert given.stride() == expected.stride()
        torch.testing.assert_close(given, expected.detach())


def test_forms_in_containers() -> None:
    def step(batch: dict[str, list[Tensor]]) -> Tensor:
        return sum(by_strides(each) for each in batch["x"])  # type: ignore[return-value]

    graphed = torchproof.graph(step)
    for _ in range(2):
        for pair in (("contiguous", "transposed"), ("transposed", "contiguous")):
            batch = {"x": [FORMS[name]() for name in pair]}
            torch.testing.assert_close(graphed(batch), step(batch))
    assert graphed.status().recordings == 2


# -- gradients of arguments ------------------------------------------------------------


def backward(x: Tensor) -> Tensor:
    loss = (x * x).sum()
    loss.backward()
    return loss


def test_a_hook_of_an_argument_runs() -> None:
    graphed = torchproof.graph(backward)
    for hooked in (False, True, False, True):
        x = torch.ones(3, requires_grad=True)
        if hooked:
            x.register_hook(lambda gradient: gradient * 10)
        graphed(x)
        assert x.grad is not None
        assert x.grad.tolist() == [20.0 if hooked else 2.0] * 3


def test_a_gradient_that_the_step_drops() -> None:
    def step(x: Tensor) -> Tensor:
        if x.grad is not None:
            x.grad = None
        return backward(x)

    graphed = torchproof.graph(step)
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        graphed(x)
        assert x.grad is not None and x.grad.tolist() == [2.0] * 3


# -- strides of outputs ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "eager"), [("transposed", "contiguous"), ("contiguous", "columns")]
)
def test_values_decide_and_copies_get_the_strides_of_eager(
    form: str, eager: str
) -> None:
    """Compiled code may have other strides than eager."""
    expected = FORMS[eager]()
    actual = strides.clone(expected, FORMS[form]().stride())
    results = [StepResult({"output": each}, {}) for each in (actual, expected)]
    assert compare_results(*results, []).verdict == "same"
    copies = OutputCopies({"keys": actual}, Clones(), [expected.stride()])
    assert copies()["keys"].stride() == expected.stride()
    assert torch.equal(copies()["keys"], expected)


def test_a_small_part_of_a_large_output_is_compact() -> None:
    def step(x: Tensor) -> Tensor:
        return (x * 2)[:, :1]

    graphed = torchproof.graph(step)
    x = torch.randn(SIZE, 100_000)
    for _ in range(2):
        given = graphed(x)
        assert torch.equal(given, step(x))
    assert given.untyped_storage().nbytes() == SIZE * x.itemsize


# -- what surrounds a call -------------------------------------------------------------


def test_transforms_and_hooks_of_autograd_run_the_step_itself() -> None:
    def step(x: Tensor) -> Tensor:
        return x * 2 if x.dim() == 1 else x * 3

    graphed = torchproof.graph(step)
    x = torch.randn(4, 3)
    graphed(x[0])
    assert torch.equal(torch.vmap(graphed)(x), x * 2)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torchproof.graph(backward)(torch.ones(3, requires_grad=True))
    assert saved
