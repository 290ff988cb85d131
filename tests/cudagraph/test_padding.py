"""Padding: calls are padded to a bucket, and outputs cut to the size of the call."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.graph_status import Stopped
from torchproof.runtime.cudagraph.padding import Pad, Padding, cut_to, shapes_of

Pair = namedtuple("Pair", "first second")
BUCKET = {"batch": 4, "length": 8}


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


@pytest.mark.parametrize("unpad", [{"": ("batch", "length")}, None])
def test_a_few_recordings_serve_many_sizes(
    unpad: dict[str, object] | None, device: str
) -> None:
    model = Tagger().to(device).eval()
    graphed = torchproof.graph(model, pad=PAD, unpad=unpad, buckets=[(4, 8), (4, 16)])
    for batch, length in [(3, 5), (4, 8), (1, 11), (3, 5), (2, 7), (4, 16)]:
        ids = torch.randint(50, (batch, length), device=device)
        answer = graphed(ids)
        assert answer.shape == (batch, length, 3)
        torch.testing.assert_close(answer, model(ids).detach())
    status = graphed.status()
    assert (status.recordings, status.stops) == (2, ())
    assert status.padding is not None
    hits = [each["hits"] for each in status.padding["buckets"]]
    assert hits == [4, 2] and status.padding["left_out"] == []
    useful = 3 * 5 + 4 * 8 + 3 * 5 + 2 * 7 + 1 * 11 + 4 * 16
    assert status.padding["waste"] == (4 * 4 * 8 + 2 * 4 * 16) / useful - 1
    ids = torch.randint(50, (5, 9), device=device)  # beyond all buckets
    torch.testing.assert_close(graphed(ids), model(ids).detach())
    status = graphed.status()
    assert status.recordings == 3 and status.padding is not None
    assert status.padding["left_out"] == [{"size": [5, 9], "calls": 1}]


def test_what_padding_would_change_is_not_padded() -> None:
    model = PooledTagger().eval()
    graphed = torchproof.graph(model, pad=PAD, unpad={"": ("batch",)}, buckets=[(4, 8)])
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
        unpad={"": ()},
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


def test_the_padding_has_the_declared_value() -> None:
    names = ("batch", "length")
    padding = Padding.parse({"x": Pad(names, value=7)}, None, lambda x: x)
    for rows, columns in ((4, 8), (2, 3), (3, 1)):
        x = torch.arange(rows * columns).view(rows, columns)
        (padded_x,), _ = padding.padded(((x,), {}), BUCKET)
        expected = torch.full((4, 8), 7)
        expected[:rows, :columns] = x
        assert torch.equal(padded_x, expected)


def test_arguments_are_found_by_name_position_and_key() -> None:
    def step(batch: Any, mask: Any = None, *, scale: float = 1.0) -> None: ...

    ids, mask = torch.ones(3, 5, dtype=torch.long), torch.ones(3, dtype=torch.bool)
    pad = {"batch.ids": ("batch", "length"), 1: ("batch",), "batch.more.0": ("batch",)}
    padding = Padding.parse(pad, None, step)
    batch = {"ids": ids, "more": (mask, "text"), "other": ids}
    for args, kwargs in (((batch, mask), {}), ((batch,), {"mask": mask})):
        assert padding.sizes((args, kwargs)) == {"batch": 3, "length": 5}
        padded_args, named = padding.padded((args, {**kwargs, "scale": 2.0}), BUCKET)
        assert padded_args[0]["ids"].shape == (4, 8)
        assert padded_args[0]["more"][0].shape == (4,)
        assert padded_args[0]["more"][1] == "text"
        assert padded_args[0]["other"] is ids
        grown = padded_args[1] if len(padded_args) > 1 else named["mask"]
        assert grown.tolist() == [True, True, True, False]
        assert named["scale"] == 2.0
    assert batch["ids"] is ids, "the caller's batch is not touched"


def test_numbers_stand_for_dimensions_that_vary_together() -> None:
    padding = Padding.parse({"x": 0, "y": (0, -1)}, {"": 0}, lambda x, y: x)
    x, y = torch.ones(3, 2), torch.ones(3, 5)
    sizes = padding.sizes(((x, y), {}))
    assert sizes == {"dimension 0": 3, "dimension -1": 5}
    (x, y), _ = padding.padded(((x, y), {}), {"dimension 0": 4, "dimension -1": 8})
    assert x.shape == (4, 2)
    assert y.shape == (4, 8)


@pytest.mark.parametrize(
    "args",
    [
        (torch.ones(3, 5), torch.ones(2, 5)),
        (torch.ones(3, 5), [1]),
        (torch.ones(3), None),
        (torch.ones(3, 5, requires_grad=True), None),
        (torch.ones(3, 5, dtype=torch.bool), None),
        (torch.ones(3, 5, dtype=torch.uint8), None),
        (None, None),
    ],
)
def test_a_call_that_does_not_fit_is_not_padded(args: Any) -> None:
    names = ("batch", "length")
    pad = {"x": Pad(names, value=-100), "y": names}
    padding = Padding.parse(pad, None, lambda x, y: x)
    assert padding.sizes((args, {})) is None
    assert padding.sizes(((torch.ones(3, 5), None), {})) is not None


@dataclass
class Output:
    logits: Tensor
    states: tuple[Tensor, ...]
    loss: Tensor


@pytest.mark.parametrize("kind", [Output, dict])
def test_outputs_are_cut_by_name(kind: Any) -> None:
    names, state = ("batch", "length"), torch.ones(4, 8)
    output = kind(
        logits=torch.ones(4, 8, 3), states=(state, state + 1), loss=torch.tensor(1.0)
    )
    unpad = {"logits": names, "states": names, "states.1": ("batch", None)}
    padding = Padding.parse({"x": names}, unpad, lambda x: x)
    found = padding.cut(output, {"batch": 3, "length": 5}, BUCKET)
    assert type(found) is kind
    assert shapes_of(found) == ((3, 5, 3), (3, 5), (3, 8), ())
    assert shapes_of(output)[0] == (4, 8, 3)


def test_an_output_that_was_not_described_stops_padding() -> None:
    for unpad, output in (
        ({"logits": ("batch",)}, {"more": torch.ones(4)}),
        ({"": ("batch",)}, torch.ones(5)),
        ({"": ("batch", "length")}, torch.ones(4)),
        ({"": ("batch",)}, {torch.ones(4)}),
    ):
        padding = Padding.parse({"x": ("batch", "length")}, unpad, lambda x: x)
        with pytest.raises(Stopped):
            padding.cut(output, {"batch": 3, "length": 5}, BUCKET)


def test_outputs_are_cut_to_the_shapes_of_eager() -> None:
    padded = Pair(torch.arange(4), torch.arange(32).view(4, 8))
    found = cut_to(padded, ((3,), (3, 8)))
    assert isinstance(found, Pair)
    assert found.first.tolist() == [0, 1, 2]
    assert torch.equal(found.second, padded.second[:3])
    for shapes in (((3,),), ((3,), (3, 9)), ((3,), (3, 8, 1))):
        with pytest.raises(Stopped):
            cut_to(padded, shapes)
