"""Steps compiled before they are recorded, and the arguments of torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from graph_models import Block
from torch import nn

import torchproof
from torchproof.records.run import UserError
from torchproof.runtime.cudagraph import build_graph
from torchproof.runtime.cudagraph.graphed_step import Graphed
from torchproof.strategies.strategy import parse, with_arguments

FORMS = ("full", "regional", "nested")


def net() -> nn.Sequential:
    return nn.Sequential(Block(), Block(), Block())


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each torch.compile, which makes no code of its own here."""
    calls: list[dict[str, Any]] = []
    plain = torch.compile

    def note(fn: Any, **arguments: Any) -> Any:
        calls.append(arguments)
        return plain(fn, backend="aot_eager", dynamic=arguments.get("dynamic"))

    monkeypatch.setattr(torch, "compile", note)
    return calls


def recorded(model: nn.Module, form: str, **settings: Any) -> Graphed:
    """With a backend whose operations a strip can note."""
    strategy = with_arguments(parse(form), backend="aot_eager")
    options = {"train": False, "pool": None, "buffers": False, "padder": None}
    return build_graph.build_graphed(model, strategy=strategy, **options | settings)


@pytest.mark.parametrize("form", FORMS)
def test_arguments_reach_torch_compile(form: str, given: list[dict[str, Any]]) -> None:
    options = {"coordinate_descent_tuning": True}
    x = torch.randn(3, 4)
    model = net().eval()
    graphed = torchproof.graph(model, (x,), strategy=form, options=options)
    assert given
    assert all(each == {"dynamic": False, "options": options} for each in given)
    assert graphed.falls_back == [] and graphed.status().strategy == form
    torch.testing.assert_close(graphed(x), model(x).detach())


def test_what_is_given_wins_over_what_each_shape_needs(
    given: list[dict[str, Any]],
) -> None:
    mode = "max-autotune-no-cudagraphs"
    torchproof.graph(net().eval(), strategy="full", dynamic=None, mode=mode)
    assert given == [{"dynamic": None, "mode": mode}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "reduce-overhead"}, r"\bmax-autotune-no-cudagraphs"),
        ({"options": {"triton.cudagraphs": True}}, r"\bmax-autotune-no-cudagraphs"),
        ({"backend": "aot_eager"}, r"torch\.compile\(step, backend='aot_eager'\)"),
        ({"optoins": {}}, r"'optoins'.*\boptions\b"),
        ({"exmaple": ()}, r"'exmaple'.*\bexample\b"),
        ({"strategy": "eager", "dynamic": True}, r"\beager\b.*\barguments\b"),
        ({"strategy": "full:marks"}, "marks"),
        ({"strategy": "core:encode"}, "eager, full, regional, nested"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        torchproof.graph(net(), **{"strategy": "full", **arguments})


def test_nested_blocks_are_replayed_with_their_own_weights() -> None:
    train = True
    model, plain = net().train(train), net().train(train)
    plain.load_state_dict(model.state_dict())
    graphed = recorded(model, "nested", train=train)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4)
        model.zero_grad()
        plain.zero_grad()
        answer, expected = graphed(x), plain(x)
        torch.testing.assert_close(answer, expected.detach())
        if train:
            expected.mean().backward()
            for mine, theirs in zip(
                model.parameters(), plain.parameters(), strict=True
            ):
                torch.testing.assert_close(mine.grad, theirs.grad)
    status = graphed.status()
    assert (status.recordings, status.stops, status.strategy) == (2, (), "nested")
    assert not any("forward" in vars(block) for block in model)
