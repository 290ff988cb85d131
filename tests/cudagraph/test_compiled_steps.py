"""Steps compiled before they are recorded, and arguments that are refused."""

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


# -- refused ---------------------------------------------------------------------------


class Step(nn.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        return x


PAD: dict[str, Any] = {"pad": {"x": 0}, "buckets": [4]}
FULL = {"strategy": "full"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    # Arguments of torch.compile.
    ({**FULL, "mode": "reduce-overhead"}, r"\bmax-autotune-no-cudagraphs"),
    ({**FULL, "mode": "x"}, "mode"),
    (
        {**FULL, "options": {"triton.cudagraphs": True}},
        r"\bmax-autotune-no-cudagraphs",
    ),
    ({**FULL, "options": {"no_such_option": 1}}, "options"),
    ({**FULL, "backend": "aot_eager"}, r"torch\.compile\(step, backend='aot_eager'\)"),
    ({**FULL, "dynamic": "x"}, "dynamic"),
    ({"strategy": "eager", "dynamic": True}, r"\beager\b.*\barguments\b"),
    # Strategies.
    ({"strategy": "full:marks"}, "marks"),
    ({"strategy": "core:encode"}, "eager, full, regional, nested"),
    ({"strategy": "best"}, r"^strategy 'best' needs wait=False"),
    ({"strategy": "beast", "wait": False}, r"^no strategy 'beast'"),
    ({"strategy": 3}, "strategy"),
    # Its own arguments.
    ({"optoins": {}}, r"'optoins'.*\boptions\b"),
    ({"exmaple": ()}, r"'exmaple'.*\bexample\b"),
    ({"nope": 1}, "nope"),
    ({"example": torch.ones(2)}, "example"),
    ({"wait": "no"}, r"^wait\b.*\bTrue or False"),
    ({"train": 1}, "train"),
    ({"outputs": "x"}, "outputs"),
    ({"pool": 3}, "pool"),
    ({"recipe": 3}, "recipe"),
    # Padding.
    ({"pad": 3}, "pad"),
    ({"buckets": [4]}, "pad"),
    ({**PAD, "pad": {"z": 0}}, r"pad\['z'\]: .*\bx, y\b"),
    ({**PAD, "pad": {5: 0}}, r"pad\['5'\]: .*\bx, y\b"),
    ({**PAD, "pad": {"x": ("batch", 1)}}, r"\('batch', 1\)"),
    ({**PAD, "pad": {"x": (None,)}}, r"^pad: .*\bdimension\b"),
    ({**PAD, "pad": {"x": ("batch", "length")}}, "batch, length"),
    ({**PAD, "buckets": None}, "buckets"),
    ({**PAD, "buckets": 5}, "buckets"),
    ({**PAD, "buckets": [0]}, "positive"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said) as error:
        torchproof.graph(Step(), **arguments)
    assert "\n" not in str(error.value)
