"""Calls that are padded to a bucket: same answers, fewer recordings, known waste."""

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.records.run import UserError


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class Pooling(Tagger):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(dim=1)


PAD = {"ids": ("batch", "length")}


@pytest.mark.parametrize("unpad", [{"": ("batch", "length")}, None])
def test_a_few_recordings_serve_many_sizes(unpad: dict[str, object] | None) -> None:
    model = Tagger().eval()
    graphed = torchproof.graph(model, pad=PAD, unpad=unpad, buckets=[(4, 8), (4, 16)])
    for batch, length in [(3, 5), (4, 8), (1, 11), (3, 5), (2, 7), (4, 16)]:
        ids = torch.randint(50, (batch, length))
        answer = graphed(ids)
        assert answer.shape == (batch, length, 3)
        torch.testing.assert_close(answer, model(ids).detach())
    status = graphed.status()
    assert status.recordings == 2
    assert status.stops == ()
    assert status.padding is not None
    assert [each["hits"] for each in status.padding["buckets"]] == [4, 2]
    assert status.padding["waste"] > 0


def test_what_padding_would_change_is_not_padded() -> None:
    model = Pooling().eval()
    graphed = torchproof.graph(model, pad=PAD, unpad={"": ("batch",)}, buckets=[(4, 8)])
    for length in (8, 5, 5, 8):
        ids = torch.randint(50, (4, length))
        torch.testing.assert_close(graphed(ids), model(ids).detach())
    assert "padding" in graphed.falls_back[0]


def test_a_size_beyond_all_buckets_has_its_own_recording() -> None:
    model = Tagger().eval()
    graphed = torchproof.graph(model, pad=PAD, buckets=[(4, 8)])
    ids = torch.randint(50, (5, 9))
    torch.testing.assert_close(graphed(ids), model(ids).detach())
    assert graphed.status().recordings == 1


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


def test_statistics_over_padding_are_noticed() -> None:
    model = nn.BatchNorm1d(4).train()
    graphed = torchproof.graph(model, pad={0: ("batch",)}, buckets=[8])
    twin = nn.BatchNorm1d(4).train()
    for size in (3, 3, 8):
        x = torch.randn(size, 4)
        torch.testing.assert_close(graphed(x), twin(x).detach())
        torch.testing.assert_close(model.running_mean, twin.running_mean)
    assert "padded" in graphed.falls_back[0]


def test_buckets_are_planned_from_what_was_seen() -> None:
    model = Tagger().eval()
    graphed = torchproof.graph(model, pad=PAD, unpad={"": ("batch", "length")})
    for length in (5, 6, 7, 15, 16):
        graphed(torch.randint(50, (2, length)))
    plan = graphed.plan(captures=2)
    assert plan.sizes == ((2, 7), (2, 16))
    graphed.use(plan)
    ids = torch.randint(50, (2, 3))
    torch.testing.assert_close(graphed(ids), model(ids).detach())


def test_bad_arguments() -> None:
    model = Tagger()
    with pytest.raises(UserError, match=r"\bpad\b"):
        torchproof.graph(model, buckets=[4])
    with pytest.raises(UserError, match="batch, length"):
        torchproof.graph(model, pad=PAD, buckets=[4])
    with pytest.raises(UserError, match="pad="):
        torchproof.graph(model).plan()
