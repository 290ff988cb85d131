"""Arguments of every kind: outputs, or errors, are those of eager."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchproof
from torchproof.runtime.cudagraph.graphed_step import Graphed
from torchproof.runtime.cudagraph.recorder import (
    Clones,
    OutputCopies,
    StepResult,
    compare_results,
)
from torchproof.runtime.tensors import strides

SIZE = 4


X = torch.ones(3)


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
    step: Callable[..., Any], device: str
) -> None:
    graphed = torchproof.graph(step)
    for _ in range(2):
        for name, form in FORMS.items():
            with torch.device(device):
                x = form()
            assert outcome(graphed, x) == outcome(step, x), name
    status = graphed.status()
    assert status.replays > 0
    if step is by_strides:
        # Rows of a larger tensor, and its first half, lie in memory as a whole one.
        assert status.recordings == len(FORMS) - 1
        assert status.replays == status.calls and status.stops == ()


def test_images_in_channels_last(device: str) -> None:
    convolution = torch.nn.Conv2d(3, 4, 3).to(device)
    graphed = torchproof.graph(convolution)
    for form in (torch.contiguous_format, torch.channels_last) * 2:
        x = torch.randn(2, 3, 5, 5, device=device).contiguous(memory_format=form)
        given, expected = graphed(x), convolution(x)
        assert given.stride() == expected.stride()
        torch.testing.assert_close(given, expected.detach(), rtol=1e-3, atol=1e-3)
    assert graphed.status().recordings == 2


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


# -- arguments that share memory, and those that are no tensors ------------------------


def assert_same_answer(graphed: Graphed, step: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(graphed(*args), step(*args).detach())


def test_the_same_tensor_twice_is_another_call() -> None:
    def step(a: Tensor, b: Tensor) -> Tensor:
        return a * 10 + b

    graphed = torchproof.graph(step)
    one, other = torch.ones(3), torch.full((3,), 2.0)
    for pair in ((one, one), (one, other), (other, one), (other, other)):
        assert_same_answer(graphed, step, *pair)


def test_arguments_that_share_memory() -> None:
    def reads(a: Tensor, b: Tensor) -> Tensor:
        return a * 10 + b

    def writes(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 1

    graphed = torchproof.graph(reads)
    for _ in range(3):
        assert_same_answer(graphed, reads, *torch.randn(2, 3).unbind())
    assert graphed.status().replays == 3
    graphed = torchproof.graph(writes)
    for _ in range(2):
        x = torch.ones(4)
        assert graphed(x, x[:2]).tolist() == [2.0, 2.0]
    assert "share memory" in graphed.falls_back[0]
    x = torch.ones(4)
    assert graphed(x, torch.zeros(2)).tolist() == [0.0, 0.0]
    assert x.tolist() == [2.0] * 4
    assert graphed.status().replays == 1


@dataclasses.dataclass
class Options:
    k: float = 2.0


class Choice(enum.Enum):
    TWO = 2
    THREE = 3


@pytest.mark.parametrize("options", [Options(), SimpleNamespace(k=2.0)])
def test_an_argument_that_may_change_is_not_recorded(options: Any) -> None:
    def step(x: Tensor, options: Any) -> Tensor:
        return x * options.k

    graphed = torchproof.graph(step)
    assert_same_answer(graphed, step, X, options)
    options.k = 9.0
    assert_same_answer(graphed, step, X, options)
    why = graphed.falls_back[0]
    assert "argument.0.1" in why and type(options).__name__ in why


def test_arguments_that_cannot_change_count_by_value() -> None:
    def step(x: Tensor, choice: Choice, dtype: torch.dtype, deep: list[Any]) -> Tensor:
        return (x * choice.value).to(dtype) + deep[0]["bias"]

    graphed = torchproof.graph(step)
    for _ in range(2):
        assert_same_answer(graphed, step, X, Choice.TWO, torch.float64, [{"bias": 1}])
        assert_same_answer(graphed, step, X, Choice.THREE, torch.float32, [{"bias": 2}])
    assert (graphed.status().replays, graphed.status().recordings) == (4, 2)


# -- calls that a graph cannot take ----------------------------------------------------


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Any = None) -> Any:
        return None if x is None else self.inner(x)


def answer_of(step: Callable[..., Any], *args: Any) -> Any:
    """The answer, or the kind of error."""
    try:
        with torch.no_grad():
            return step(*args)
    except Exception as error:
        return type(error)


def assert_same(given: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(given, expected)
    else:
        assert given == expected


CALLS: dict[str, tuple[Any, ...]] = {
    "empty batch": (torch.ones(0, 4),),
    "no dimensions": (torch.tensor(1.0),),
    "one dimension": (torch.ones(4),),
    "too many dimensions": (torch.ones(2, 3, 4),),
    "wrong width": (torch.ones(2, 5),),
    "None": (None,),
    "nothing": (),
    "a number": (3,),
    "a list": ([1.0, 2.0],),
    "larger than all buckets": (torch.ones(9, 4),),
    "other type": (torch.ones(2, 4, dtype=torch.int64),),
    "needs a gradient": (torch.ones(2, 4, requires_grad=True),),
    "sparse": (torch.ones(2, 4).to_sparse(),),
}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_the_outcome_is_that_of_eager(name: str, padded: bool) -> None:
    model, call = Rows().eval(), CALLS[name]
    settings: Any = {"pad": {"x": ("batch",)}, "buckets": [4, 8]} if padded else {}
    graphed = torchproof.graph(model, **settings)
    x = torch.randn(3, 4)
    assert_same(answer_of(graphed, x), answer_of(model, x))
    for _ in range(2):
        assert_same(answer_of(graphed, *call), answer_of(model, *call))
    assert_same(answer_of(graphed, x), answer_of(model, x))
    assert graphed.status().replays >= 2


# -- arguments that carry more than their tensors --------------------------------------


class Batch(dict):  # type: ignore[type-arg]
    mode = 1.0


class Unhashable:
    def __hash__(self) -> int:
        raise RuntimeError("not to be hashed")


class Alike:
    """Equal to all of its kind, whatever it holds."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float


def scaled(x: Tensor, by: Any) -> Tensor:
    return x * getattr(by, "scale", 2.0)


def test_equal_arguments_with_other_contents() -> None:
    graphed = torchproof.graph(scaled)
    for by in (Alike(2.0), Alike(3.0), Unhashable()):
        assert_same(graphed(X, by), scaled(X, by))
    assert graphed.status().replays == 0
    assert {stop.kind for stop in graphed.status().stops} == {"input"}


def test_frozen_arguments_count_by_value() -> None:
    graphed = torchproof.graph(scaled)
    for by in (Frozen(0.0), Frozen(-0.0), Frozen(2.0), Frozen(0.0)):
        assert_same(1 / graphed(X, by), 1 / scaled(X, by))
    status = graphed.status()
    assert (status.recordings, status.replays) == (3, 4)


def test_attributes_of_arguments() -> None:
    def step(batch: Any) -> Tensor:
        return batch["x"] * batch.mode

    graphed = torchproof.graph(step)
    batch = Batch(x=X)
    assert_same(graphed(batch), step(batch))
    assert graphed.status().replays == 1
    batch.mode = 3.0
    assert_same(graphed(batch), step(batch))
    batch.mode = 4.0
    assert_same(graphed(batch), step(batch))


def test_attributes_of_tensors_that_are_passed() -> None:
    def step(x: Tensor) -> Tensor:
        return x * getattr(x, "scale", 1.0)

    graphed = torchproof.graph(step)
    x = torch.ones(3)
    assert_same(graphed(x), step(x))
    x.scale = 2.0  # type: ignore[attr-defined]
    assert_same(graphed(x), step(x))
    x.scale = 3.0  # type: ignore[attr-defined]
    assert_same(graphed(x), step(x))


def test_a_function_that_is_passed_is_watched() -> None:
    class Config:
        scale = 2.0

    def times(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k * Config.scale

    def step(x: Tensor, function: Callable[..., Tensor]) -> Tensor:
        return function(x)

    graphed = torchproof.graph(step)
    assert_same(graphed(X, times), step(X, times))
    Config.scale = 5.0
    assert_same(graphed(X, times), step(X, times))
    times.__defaults__ = (7.0,)
    assert_same(graphed(X, times), step(X, times))


# -- what overrides torch --------------------------------------------------------------


class Negated(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        return -answer if func is torch.relu else answer


class Noting(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return func(*args, **(kwargs or {}))


def test_modes_see_the_step_itself() -> None:
    graphed = torchproof.graph(lambda x: torch.relu(x))
    assert graphed(X).tolist() == [1.0] * 3
    with Negated():
        assert graphed(X).tolist() == [-1.0] * 3
    with Noting() as mode:
        graphed(X)
    assert mode.count >= 1
    assert graphed(X).tolist() == [1.0] * 3
    assert (graphed.status().replays, graphed.status().plain_calls) == (2, 2)


def test_a_step_that_fails_only_when_it_is_watched() -> None:
    known = X

    def step(x: Tensor) -> Tensor:
        if x is not known:  # a recording has memory of its own
            raise RuntimeError("a stranger")
        return x * 2

    graphed = torchproof.graph(step, (X,))
    for _ in range(2):
        assert graphed(X).tolist() == [2.0] * 3
    (stop,) = graphed.status().stops
    assert stop.kind == "capture" and "a stranger" in stop.reason


def test_an_ordered_dict_keeps_its_order() -> None:
    def step(batch: Any) -> Tensor:
        return next(iter(batch.values())) * 1

    graphed = torchproof.graph(step)
    one = collections.OrderedDict(a=X, b=X * 2)
    assert_same(graphed(one), step(one))
    one.move_to_end("a")
    assert_same(graphed(one), step(one))
