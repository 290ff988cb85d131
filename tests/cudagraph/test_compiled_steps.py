"""Steps compiled before they are recorded, and the arguments of torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from twins import Block

import torchproof
from torchproof.records.run import UserError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
FORMS = ("full", "regional", "nested")


def net() -> nn.Sequential:
    return nn.Sequential(Block(), Block(), Block())


@pytest.fixture
def compile_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each torch.compile, which makes no code of its own here."""
    calls: list[dict[str, Any]] = []
    plain = torch.compile

    def note(fn: Any, **arguments: Any) -> Any:
        calls.append(arguments)
        return plain(fn, backend="aot_eager", dynamic=arguments.get("dynamic"))

    monkeypatch.setattr(torch, "compile", note)
    return calls


@pytest.mark.parametrize("form", FORMS)
def test_arguments_reach_torch_compile(
    form: str, compile_calls: list[dict[str, Any]]
) -> None:
    options = {"coordinate_descent_tuning": True}
    x = torch.randn(3, 4)
    model = net().eval()
    graphed = torchproof.graph(model, (x,), strategy=form, options=options)
    assert compile_calls
    assert all(each == {"dynamic": False, "options": options} for each in compile_calls)
    assert graphed.falls_back == [] and graphed.status().strategy == form
    torch.testing.assert_close(graphed(x), model(x).detach())


def test_arguments_of_the_caller_win_over_those_of_each_shape(
    compile_calls: list[dict[str, Any]],
) -> None:
    mode = "max-autotune-no-cudagraphs"
    torchproof.graph(net().eval(), strategy="full", dynamic=None, mode=mode)
    assert compile_calls == [{"dynamic": None, "mode": mode}]


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
        ({"wait": "no"}, r"^wait\b.*\bTrue or False"),
        ({"strategy": "best"}, r"^strategy 'best' needs wait=False"),
        ({"strategy": "beast", "wait": False}, r"^no strategy 'beast'"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        torchproof.graph(net(), **{"strategy": "full", **arguments})
