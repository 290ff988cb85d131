"""Padding: calls are padded to a bucket, and outputs cut to the size of the call."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.padding import Pad, Padder

Pair = namedtuple("Pair", "first second")
NAMES = ("batch", "length")


# -- graphed steps -------------------------------------------------------------------


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class PooledTagger(Tagger):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(dim=1)


PAD = {"ids": ("batch", "length")}


def test_a_few_recordings_serve_many_sizes(device: str) -> None:
    model = Tagger().to(device).eval()
    graphed = torchproof.graph(model, pad=PAD, buckets=[(4, 8), (4, 16)])
    for batch, length in [(3, 5), (4, 8), (1, 11), (3, 5), (2, 7), (4, 16)]:
        ids = torch.randint(50, (batch, length), device=device)
        answer = graphed(ids)
        assert answer.shape == (batch, length, 3)
        torch.testing.assert_close(answer, model(ids).detach())
    status = graphed.status()
    assert (status.recordings, status.stops) == (2, ())
    useful = 3 * 5 + 4 * 8 + 3 * 5 + 2 * 7, 1 * 11 + 4 * 16
    assert [dataclasses.astuple(each) for each in status.padding] == [
        ((4, 8), 4, useful[0], 4 * 4 * 8 / useful[0] - 1),
        ((4, 16), 2, useful[1], 2 * 4 * 16 / useful[1] - 1),
    ]
    ids = torch.randint(50, (5, 9), device=device)  # beyond all buckets
    torch.testing.assert_close(graphed(ids), model(ids).detach())
    assert graphed.status().recordings == 3


def test_what_padding_would_change_is_not_padded() -> None:
    model = PooledTagger().eval()
    graphed = torchproof.graph(model, pad=PAD, buckets=[(4, 8)])
    for length in (8, 5, 5, 8):
        ids = torch.randint(50, (4, length))
        torch.testing.assert_close(graphed(ids), model(ids).detach())
    assert "padding" in graphed.falls_back[0]
    norm, twin = nn.BatchNorm1d(4).train(), nn.BatchNorm1d(4).train()
    graphed = torchproof.graph(norm, pad={0: ("batch",)}, buckets=[8])
    for size in (3, 3, 8):
        x = torch.randn(size, 4)
        torch.testing.assert_close(graphed(x), twin(x).detach())
        torch.testing.assert_close(norm.running_mean, twin.running_mean)
    assert "padded" in graphed.falls_back[0]


def test_a_padded_replay_that_cannot_be_cut_is_undone() -> None:
    calls = torch.zeros(())

    def step(x: Tensor) -> list[Tensor]:
        calls.add_(1)
        return [x] if len(x) == 4 else [x, x + 1]

    graphed = torchproof.graph(step, pad={"x": 0}, buckets=[4])
    for number, size in enumerate((4, 3, 3), 1):
        assert len(graphed(torch.ones(size, 2))) == (1 if size == 4 else 2)
        assert calls == number
    assert [stop.kind for stop in graphed.status().stops] == ["input"]


def test_gradients_of_padded_calls() -> None:
    model = Tagger()

    def step(ids: Tensor, weights: Tensor) -> Tensor:
        loss = (model(ids).square().mean(-1) * weights).sum()
        loss.backward()
        return loss

    graphed = torchproof.graph(
        step,
        pad={"ids": ("batch", "length"), "weights": ("batch", "length")},
        buckets=[(4, 8)],
    )
    for length in (5, 6, 5):
        ids, weights = torch.randint(50, (3, length)), torch.rand(3, length)
        model.zero_grad()
        graphed(ids, weights)
        got = model.head.weight.grad.clone()
        model.zero_grad()
        step(ids, weights)
        torch.testing.assert_close(got, model.head.weight.grad)
    assert graphed.falls_back == []
    assert graphed.status().recordings == 1


# -- declarations --------------------------------------------------------------------


def padder(
    pad: Any, step: Callable[..., Any] = lambda x, y=None: x, size: Any = (4, 8)
) -> Padder:
    made = Padder.parse(step, pad, [size])
    assert made is not None
    return made


def padded(pad: Any, *args: Any, **kwargs: Any) -> Any:
    fit = padder(pad).fit((args, kwargs))
    return None if fit is None else fit.call


def test_the_padding_has_the_declared_value() -> None:
    for rows, columns in ((4, 8), (2, 3), (3, 1)):
        x = torch.arange(rows * columns).view(rows, columns)
        (padded_x,), _ = padded({"x": Pad(NAMES, value=7)}, x)
        expected = torch.full((4, 8), 7)
        expected[:rows, :columns] = x
        assert torch.equal(padded_x, expected)


def test_arguments_are_found_by_name_position_and_key() -> None:
    def step(batch: Any, mask: Any = None, *, scale: float = 1.0) -> None: ...

    ids, mask = torch.ones(3, 5, dtype=torch.long), torch.ones(3, dtype=torch.bool)
    pad = {"batch.ids": NAMES, 1: ("batch",), "batch.more.0": ("batch",)}
    batch = {"ids": ids, "more": (mask, "text"), "other": ids}
    for args, kwargs in (((batch, mask), {}), ((batch,), {"mask": mask})):
        fit = padder(pad, step).fit((args, {**kwargs, "scale": 2.0}))
        assert fit is not None and fit.sizes == {"batch": 3, "length": 5}
        padded_args, named = fit.call
        assert padded_args[0]["ids"].shape == (4, 8)
        assert padded_args[0]["more"][0].shape == (4,)
        assert padded_args[0]["more"][1] == "text"
        assert padded_args[0]["other"] is ids
        grown = padded_args[1] if len(padded_args) > 1 else named["mask"]
        assert grown.tolist() == [True, True, True, False]
        assert named["scale"] == 2.0
    assert batch["ids"] is ids, "the caller's batch is not touched"


def test_numbers_stand_for_dimensions_that_vary_together() -> None:
    x, y = torch.ones(3, 2), torch.ones(3, 5)
    (x, y), _ = padded({"x": 0, "y": (0, -1)}, x, y)
    assert x.shape == (4, 2)
    assert y.shape == (4, 8)


@pytest.mark.parametrize(
    "args",
    [
        (torch.ones(3, 5), torch.ones(2, 5)),
        (torch.ones(3, 5), [1]),
        (torch.ones(3), None),
        (torch.ones(3, 5, requires_grad=True), None),
        (torch.ones(3, 9), None),
        (torch.ones(0, 5), None),
        (None, None),
    ],
)
def test_a_call_that_does_not_fit_is_not_padded(args: Any) -> None:
    pad = {"x": Pad(NAMES, value=-100), "y": NAMES}
    assert padded(pad, *args) is None
    assert padded(pad, torch.ones(3, 5), None) is not None


# -- outputs -------------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    logits: Tensor
    states: tuple[Tensor, ...]
    pair: Pair
    total: float = 1.0


@pytest.mark.parametrize("kind", [Output, dict])
def test_outputs_are_cut_to_what_eager_returns(kind: Any) -> None:
    def step(x: Tensor) -> Any:
        return kind(
            logits=x.unsqueeze(-1) * torch.ones(3),
            states=(x + 1, x[0] + 2),
            pair=Pair(torch.ones(4, 2), x * 2),
            total=1.0,
        )

    graphed = torchproof.graph(step, pad={"x": NAMES}, buckets=[(4, 8)])
    for _ in range(4):  # the first one may create state, and is not compared
        x = torch.randn(3, 5)
        answer = graphed(x)
        assert type(answer) is kind
        torch.testing.assert_close(vars_of(answer), vars_of(step(x)))
    (row,) = graphed.status().padding
    assert row.calls > 1 and graphed.falls_back == []


def vars_of(output: Any) -> dict[str, Any]:
    return output if isinstance(output, dict) else vars(output)


def test_outputs_of_other_sizes_than_eagers_stop_padding() -> None:
    steps: list[Callable[[Tensor], Any]] = [
        lambda x: torch.cat([x, x]) if len(x) < 4 else x,
        lambda x: x.sum() if len(x) < 4 else x,
        lambda x: {x + 1},
    ]
    for step in steps:
        graphed = torchproof.graph(step, pad={"x": 0}, buckets=[4])
        for _ in range(2):
            x = torch.ones(3, 2)
            found, expected = graphed(x), step(x)
            if isinstance(expected, set):
                [found], [expected] = found, expected
            torch.testing.assert_close(found, expected)
        assert graphed.status().padding[0].calls == 0
        assert "padded" in graphed.falls_back[0]
