"""Nested blocks, and recorded steps compiled with options, on a real device."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.measure.shared_code import artifacts, sharing
from torchproof.strategies.strategy import parse, with_arguments

# Torch warns of what may be faster; that is not the point here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda"
FORMS = ("full", "regional", "nested")
OPTIONS = {"coordinate_descent_tuning": True}
MODE = "max-autotune-no-cudagraphs"


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(64), nn.Linear(64, 64)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(torch.tanh(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 64), nn.Linear(64, 8)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pair(train: bool, dropout: float = 0.0) -> tuple[Net, Net]:
    """A model, and another with the same weights."""
    torch.manual_seed(0)
    model = Net(dropout).to(DEVICE).train(train)
    return model, copy.deepcopy(model)


def batch(rows: int) -> Tensor:
    return torch.randn(rows, 8, device=DEVICE)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


def same_gradients(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        close(mine.grad, theirs.grad)


@pytest.mark.parametrize("train", [False, True])
def test_the_code_of_a_block_is_made_once_and_right(train: bool) -> None:
    model, plain = pair(train)
    calls = [(batch(rows),) for rows in (4, 9)]
    done = parse("nested").apply(model, calls)
    with done.recording_compilations(), torch.set_grad_enabled(train):
        for call in calls:
            answer, expected = done.fn(*call), plain(*call)
            close(answer, expected)
            if train:
                model.zero_grad()
                plain.zero_grad()
                answer.mean().backward()
                expected.mean().backward()
                same_gradients(model, plain)
    assert artifacts(done) == {"Block": 1} and sharing(done) == []


def test_nested_blocks_with_dropout_draw_anew() -> None:
    model, _ = pair(train=True, dropout=0.5)
    done = parse("nested").apply(model, [(x := batch(9),)])
    first, second = done.fn(x), done.fn(x)
    assert not torch.equal(first, second)
    first.mean().backward()


@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_step_is_compiled_with_options(form: str) -> None:
    model, plain = pair(train=False)
    with torch.no_grad():  # a recording serves calls with gradients on, or off
        graphed = torchproof.graph(model, (batch(8),), strategy=form, options=OPTIONS)
        for rows in (8, 5, 8):
            x = batch(rows)
            close(graphed(x), plain(x))
    status = graphed.status()
    assert graphed.falls_back == [] and (status.replays, status.recordings) == (3, 2)


@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_training_step_is_compiled_with_options(form: str) -> None:
    model, plain = pair(train=True)
    graphed = torchproof.graph(
        model, (batch(8),), strategy=form, train=True, options=OPTIONS
    )
    for _ in range(3):
        x = batch(8)
        model.zero_grad()
        plain.zero_grad()
        expected = plain(x)
        expected.mean().backward()
        close(graphed(x), expected.detach())
        same_gradients(model, plain)
    assert graphed.falls_back == []


@pytest.mark.parametrize("name", ["full+graph", "regional+graph", "nested+graph"])
def test_a_strategy_with_a_graph_takes_options(name: str) -> None:
    model, plain = pair(train=False)
    strategy = with_arguments(parse(f"{name}:{MODE}"), options={"max_autotune": False})
    done = strategy.apply(model, [(x := batch(8),)])
    assert "options=" in done.source
    with torch.no_grad():
        close(done.fn(x), plain(x))
    assert done.falls_back == ()


def test_nested_blocks_share_a_graph_with_the_rest_of_a_hugging_face_model() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=4, vocab_size=1000, use_cache=False
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).to(DEVICE).eval()
    ids = torch.randint(0, 1000, (2, 32), device=DEVICE)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    graphed = torchproof.graph(model, {"input_ids": ids}, strategy="nested")
    assert graphed.falls_back == []
    close(graphed(input_ids=ids).logits, expected)
