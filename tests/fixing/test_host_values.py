"""Statements that compute Python data from Python objects leave the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from sites import program, site

from torchproof.fixing import call_probe
from torchproof.fixing.observed_calls import ObservedCall
from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.host_values import data

PROGRAM = """
import copy
from dataclasses import dataclass, field

import torch

HISTORY, KINDS = [], {{2: ["a"]}}


@dataclass
class Config:
    layers: int = 2
    names: list = field(default_factory=lambda: ["a"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.numbers = iter(range(100))

    def forward(self, x, extra=None):
        {}
        return x * len(kinds), kinds


def make():
    return Net(), [(torch.randn(2, 3),) for _ in range(3)]
"""
COPY = ["own = copy.deepcopy(self.config)  # <-", "own.layers += 1"]
KINDS = "kinds = [name * i for name in own.names for i in range(own.layers)]"


def net(*lines: str) -> str:
    return program(PROGRAM.format("\n        ".join(lines)))


def observed(text: str) -> Sequence[ObservedCall]:
    """What the probes in a program record."""
    call_probe.observed.clear()
    for _ in outputs(text):
        pass
    return list(call_probe.observed)


def outputs(text: str, **compiling: Any) -> list[Any]:
    scope: dict[str, Any] = {"__name__": "rewritten"}
    exec(compile(text, "<rewritten>", "exec", dont_inherit=True), scope)
    function, calls = scope["make"]()
    if compiling:
        torch.compiler.reset()
        function = torch.compile(function, backend="eager", **compiling)
    torch.manual_seed(0)
    return [function(*each) for each in calls]


def drafted(text: str) -> str:
    draft = data(replace(site(text, "GB109"), probe=observed))
    assert draft.tier == "safe"
    return draft.text


def test_the_statements_up_to_the_data_become_a_function() -> None:
    text = drafted(net(*COPY, KINDS))
    assert "from torchproof import host_value\n" in text
    assert (
        """
def _kinds_on_host(config):
    own = copy.deepcopy(config)
    own.layers += 1
    kinds = [name * i for name in own.names for i in range(own.layers)]
    return kinds


class Net("""
        in text
    )
    assert (
        """
    def forward(self, x, extra=None):
        kinds = host_value(_kinds_on_host, self.config)
        return x * len(kinds), kinds
"""
        in text
    )
    before = outputs(net(*COPY, KINDS))
    for after in (outputs(text), outputs(text, fullgraph=True)):
        for (_, old), (_, new) in zip(before, after, strict=True):
            assert old == new == ["", "a", "aa"]


def test_one_statement_may_be_enough() -> None:
    text = drafted(net("kinds = copy.deepcopy(self.config.names)  # <-"))
    assert "kinds = host_value(_kinds_on_host, self.config.names)" in text
    lists = [kinds for _, kinds in outputs(text, fullgraph=True)]
    assert lists == [["a"]] * 3
    assert len({id(each) for each in lists}) == 3


def test_what_may_be_missing_is_read_in_the_function() -> None:
    lines = "kinds = copy.deepcopy(extra.names) if extra is not None else []  # <-"
    text = drafted(net(lines))
    assert "kinds = host_value(_kinds_on_host, extra)" in text


def test_parameters_do_not_hide_variables_of_the_module() -> None:
    lines = "kinds = [copy.deepcopy(self.config).layers, *KINDS[2]]  # <-"
    text = net(lines).replace("self.config", "self.KINDS")
    assert "def _kinds_on_host(KINDS_):" in drafted(text)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        # The copy itself is used later.
        (["kinds = [copy.deepcopy(self.config)]  # <-"], "more than numbers"),
        ([*COPY, KINDS, "self.kept = own"], "more than numbers"),
        # A tensor is no data, and neither is what is computed from it.
        (["kinds = [copy.deepcopy(x)]  # <-"], "more than numbers"),
        (["kinds = copy.deepcopy(x).tolist()  # <-"], "read tensors"),
        # Something else is changed.
        (["kinds = copy.deepcopy(self.config.names); self.n = 1  # <-"], "does more"),
        (["self.n = kinds = copy.deepcopy(self.config.names)  # <-"], "does more"),
        (
            [
                "names = self.config.names",
                "kinds = [*copy.deepcopy(names), names.append('b')]  # <-",
            ],
            "change an object",
        ),
        (["kinds = [torch.rand(()).item(), copy.deepcopy(extra)]  # <-"], "random"),
        (["kinds = [*copy.deepcopy(extra or []), HISTORY.append(1)]  # <-"], "did not"),
        (["kinds = [next(self.numbers), copy.deepcopy(extra)]  # <-"], "each time"),
        ([*COPY[:1], "HISTORY.append(own)", "kinds = [own.layers]"], "more than"),
        ([*COPY[:1], "print(own)", "kinds = [own.layers]"], "more than numbers"),
        # The result is not new.
        ([*COPY[:1], "kinds = KINDS[own.layers]"], "something else has"),
        # The function would have names of its own.
        ([*COPY[:1], "n = 1", "kinds = [own.layers, (n := 2)]"], "more than numbers"),
        ([*COPY[:1], "import math", "kinds = [own.layers]"], "more than numbers"),
        # A name is read before it is assigned.
        (["kinds = [1]", "kinds = copy.deepcopy(kinds)  # <-"], "does more"),
        # The function ends there.
        (
            ["kinds = []", "return x, copy.deepcopy(self.config.names)  # <-"],
            "does more",
        ),
        # It needs the whole module.
        (["kinds = copy.deepcopy(vars(self)['config'].names)  # <-"], "self"),
    ],
)
def test_refused(lines: list[str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        drafted(net(*lines))
