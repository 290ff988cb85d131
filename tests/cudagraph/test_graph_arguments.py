"""Arguments of every kind: outputs, or errors, are those of eager."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchproof
from torchproof.runtime.cudagraph.recorder import (
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


def by_strides(x: Tensor) -> Tensor:
    layout = 1 if x.is_contiguous() else 3
    return x * (layout * float(x.stride(0))) + float(x.stride(1))


def restrided(x: Tensor) -> Tensor:
    return x.as_strided((SIZE,), (1,)) * 2


def from_the_start(x: Tensor) -> Tensor:
    return x.as_strided((SIZE,), (1,), 0) * 2


def by_memory(x: Tensor) -> Tensor:
    return x * (1.0 + x.storage_offset()) + float(x.untyped_storage().nbytes())


def views(x: Tensor) -> tuple[Tensor, ...]:
    own = torch.empty_like(x).fill_(1)
    seen = x, x.t(), x[:, 1:], x[:, ::2], x[:1].expand(SIZE, SIZE), x.diagonal()
    return *seen, (x * 2).t(), own, x.contiguous() + x


STEPS = (by_strides, by_memory, restrided, from_the_start, views)


def outcome(step: Callable[..., Any], *args: Any) -> Any:
    """The values and strides of the outputs, or the error."""
    try:
        with torch.no_grad():
            output = step(*args)
    except Exception as error:
        return type(error)
    tensors = output if isinstance(output, tuple) else (output,)
    return [
        each
        if each is None
        else (each.double().round(decimals=4).tolist(), each.stride())
        for each in tensors
    ]


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
    reads_storage = step in (by_memory, from_the_start)
    assert (status.replays == 0) == reads_storage
    if step is by_strides:
        # Rows of a larger tensor, and its first half, lie in memory as a whole one.
        assert status.recordings == len(FORMS) - 1
        assert status.replays == status.calls and status.stops == ()


def test_a_written_argument_is_written(device: str) -> None:
    def step(x: Tensor, cache: Tensor) -> Tensor:
        cache[0].add_(x[0])
        return cache * 2

    graphed = torchproof.graph(step)
    for name in ("contiguous", "transposed", "every second column", "windows") * 2:
        with torch.device(device):
            x, cache = square(), FORMS[name]()
        twin = strides.clone(cache, cache.stride())
        for _ in range(2):
            assert outcome(graphed, x, cache) == outcome(step, x, twin)
            assert torch.equal(cache, twin)


# -- gradients of arguments ------------------------------------------------------------


def backward(x: Tensor) -> Tensor:
    loss = (x * x).sum()
    loss.backward()
    return loss


def test_hooks_of_an_argument_and_gradients_that_the_step_drops() -> None:
    def step(x: Tensor) -> Tensor:
        if x.grad is not None:
            x.grad = None
        return backward(x)

    graphed = torchproof.graph(step)
    x = torch.ones(3, requires_grad=True)
    for hooked in (False, True, False, True):
        hook = x.register_hook(lambda gradient: gradient * 10) if hooked else None
        graphed(x)
        assert x.grad is not None
        assert x.grad.tolist() == [20.0 if hooked else 2.0] * 3
        if hook is not None:
            hook.remove()


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
    copies = OutputCopies({"keys": actual}, [expected.stride()])
    assert copies()["keys"].stride() == expected.stride()
    assert torch.equal(copies()["keys"], expected)


def test_a_small_part_of_a_large_output_is_compact() -> None:
    def step(x: Tensor) -> Tensor:
        return (x * 2)[:, :1]

    graphed = torchproof.graph(step)
    x = torch.randn(SIZE, 100_000)
    for _ in range(2):
        output = graphed(x)
        assert torch.equal(output, step(x))
    assert output.untyped_storage().nbytes() == SIZE * x.itemsize


# -- arguments that share memory, and those that are no tensors ------------------------


def test_arguments_that_share_memory() -> None:
    def reads(a: Tensor, b: Tensor) -> Tensor:
        return a * 10 + b

    def writes(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 1

    graphed = torchproof.graph(reads)
    for _ in range(3):
        pair = torch.randn(2, 3).unbind()
        torch.testing.assert_close(graphed(*pair), reads(*pair))
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


# -- calls that a graph cannot take ----------------------------------------------------


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Any = None) -> Any:
        return None if x is None else self.inner(x)


CALLS: dict[str, tuple[Any, ...]] = {
    "empty batch": (torch.ones(0, 4),),
    "one dimension": (torch.ones(4),),
    "wrong width": (torch.ones(2, 5),),
    "None": (None,),
    "larger than all buckets": (torch.ones(9, 4),),
    "other type": (torch.ones(2, 4, dtype=torch.int64),),
    "needs a gradient": (torch.ones(2, 4, requires_grad=True),),
    "sparse": (torch.ones(2, 4).to_sparse(),),
}


@pytest.mark.parametrize("padded", [True, False])
def test_the_outcome_is_that_of_eager(padded: bool) -> None:
    settings: Any = {"pad": {"x": ("batch",)}, "buckets": [4, 8]} if padded else {}
    x, model = torch.randn(3, 4), Rows().eval()
    graphed = torchproof.graph(model, **settings)
    for args in CALLS.values():
        replays = graphed.status().replays
        for each in (args, args, (x,)):
            assert outcome(graphed, *each) == outcome(model, *each), args
        assert graphed.status().replays > replays
    assert graphed.status().calls == 3 * len(CALLS)


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


@dataclasses.dataclass
class Changing:
    scale: float = 2.0


def scaled(x: Tensor, by: Any) -> Tensor:
    return x * getattr(by, "scale", 2.0)


def mixed(a: Tensor, b: Tensor) -> Tensor:
    return a * 10 + b


def by_sign(x: Tensor) -> Tensor:
    return x * (2 if x.is_conj() else 3) * (5 if x.is_neg() else 7)


def summed(batch: dict[str, list[Tensor]]) -> Tensor:
    return sum(by_strides(each) for each in batch["x"])  # type: ignore[return-value]


def chosen(x: Tensor, choice: enum.Enum, dtype: torch.dtype, deep: Any) -> Tensor:
    return (x * choice.value).to(dtype) + deep[0]["bias"]


class Choice(enum.Enum):
    TWO = 2
    THREE = 3


def complex_views() -> Iterator[tuple[Any, ...]]:
    z = torch.randn(3, 2, dtype=torch.complex64)
    for x in (z, z.conj(), z.t().conj(), z.imag, z.conj().imag, z.conj().imag.t()):
        yield (x,)


def containers() -> Iterator[tuple[Any, ...]]:
    for pair in (("contiguous", "transposed"), ("transposed", "contiguous")) * 2:
        yield ({"x": [FORMS[name]() for name in pair]},)


def batches_with_a_mode() -> Iterator[tuple[Any, ...]]:
    batch = Batch(x=X)
    yield (batch,)
    for batch.mode in (3.0, 4.0):
        yield (batch,)


def tensors_with_a_scale() -> Iterator[tuple[Any, ...]]:
    x: Any = torch.ones(3)
    yield x, x
    for x.scale in (2.0, 3.0):
        yield x, x


def functions() -> Iterator[tuple[Any, ...]]:
    class Config:
        scale = 2.0

    def times(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k * Config.scale

    yield X, times
    Config.scale = 5.0
    yield X, times
    times.__defaults__ = (7.0,)
    yield X, times


def options() -> Iterator[tuple[Any, ...]]:
    changing = Changing()
    yield X, changing
    changing.scale = 9.0
    yield X, changing


def ordered() -> Iterator[tuple[Any, ...]]:
    batch = collections.OrderedDict(a=X, b=X * 2)
    yield (batch,)
    batch.move_to_end("a")
    yield (batch,)


ONE, TWO = torch.ones(3), torch.full((3,), 2.0)
# A step, its calls, and how many of them are recorded and replayed, if it matters.
Case = tuple[Callable[..., Tensor], Callable[[], Iterable[Any]], tuple[int, int] | None]
CASES: dict[str, Case] = {
    "slices of one tensor": (
        *(lambda x: x * 2, lambda: [(x,) for x in torch.randn(6, 4, 4)], (1, 6)),
    ),
    "conjugated and negated": (by_sign, complex_views, None),
    "forms in containers": (summed, containers, (2, 4)),
    "the same tensor twice": (
        *(mixed, lambda: [(ONE, ONE), (ONE, TWO), (TWO, ONE), (TWO, TWO)], None),
    ),
    "dataclass that changes": (scaled, options, (0, 0)),
    "enums, dtypes and numbers": (
        chosen,
        lambda: (
            [
                (X, Choice.TWO, torch.float64, [{"bias": 1}]),
                (X, Choice.THREE, torch.float32, [{"bias": 2}]),
            ]
            * 2
        ),
        (2, 4),
    ),
    "equal with other contents": (
        *(scaled, lambda: [(X, by) for by in (Alike(2.0), Alike(3.0))], (0, 0)),
    ),
    "not hashable": (scaled, lambda: [(X, Unhashable())], (0, 0)),
    "sign of zero": (
        lambda x, by: 1 / (x * by),
        lambda: [(X, scale) for scale in (0.0, -0.0, 2.0, 0.0)],
        (3, 4),
    ),
    "attributes of a dict": (lambda b: b["x"] * b.mode, batches_with_a_mode, None),
    "attributes of a tensor": (scaled, tensors_with_a_scale, None),
    "functions": (lambda x, function: function(x), functions, None),
    "order of a dict": (lambda b: next(iter(b.values())) * 1, ordered, None),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_are_answered_as_in_eager(name: str) -> None:
    step, calls, counts = CASES[name]
    graphed = torchproof.graph(step)
    for call in calls():
        torch.testing.assert_close(graphed(*call), step(*call))
    status = graphed.status()
    if counts is not None:
        assert (status.recordings, status.replays) == counts, status
        assert counts[0] or {stop.kind for stop in status.stops} == {"input"}


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


def test_modes_transforms_and_hooks_of_autograd_see_the_step_itself() -> None:
    graphed = torchproof.graph(lambda x: torch.relu(x))
    assert graphed(X).tolist() == [1.0] * 3
    with Negated():
        assert graphed(X).tolist() == [-1.0] * 3
    with Noting() as mode:
        graphed(X)
    assert mode.count >= 1
    assert torch.equal(torch.vmap(graphed)(torch.ones(4, 3)), torch.ones(4, 3))
    assert graphed(X).tolist() == [1.0] * 3
    assert (graphed.status().replays, graphed.status().plain_calls) == (2, 3)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torchproof.graph(backward)(torch.ones(3, requires_grad=True))
    assert saved


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("2.00 GiB\nSee the manual."), "capture"),
        (torch.OutOfMemoryError("2.00 GiB\nSee the manual."), "memory"),
    ],
)
def test_a_step_that_fails_only_when_it_is_watched(error: Any, kind: str) -> None:
    known = X

    def step(x: Tensor) -> Tensor:
        if x is not known:  # a recording has memory of its own
            raise error
        return x * 2

    for example in ((X,), None):
        graphed = torchproof.graph(step, example)
        for _ in range(2):
            assert graphed(X).tolist() == [2.0] * 3
        (stop,) = graphed.status().stops
        assert stop.kind == kind and "2.00 GiB" in stop.reason and "\n" not in str(stop)
