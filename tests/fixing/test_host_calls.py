"""Calls that need values of tensors run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from fix_runs import fixed, verified
from sites import site

from torchproof.fixing import call_probe
from torchproof.fixing.observed_calls import ObservedCall, Value
from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.host_calls import call, statement

HELPER = """
import torch


def positions(ids, start):
    return torch.stack([torch.arange(n) for n in ids.tolist()])


def step(x, ids):
    where = positions(ids, 1)  # <- positions(ids, 1)
    return x[where]
"""


def seen(count: int, given: str, **changes: object) -> ObservedCall:
    ids = Value("tensor", (count,), "torch.int64", "cpu")
    result = Value("tensor", (count, 4), "torch.int64", "cpu")
    known = ObservedCall({"0": ids}, (result,), False, given)
    return replace(known, **changes)  # type: ignore[arg-type]


def drafted(*observed: ObservedCall) -> str:
    at = replace(site(HELPER), inner="positions", probe=lambda text: observed)
    return call(at).text


def test_sizes_are_those_of_an_argument_or_constants() -> None:
    text = drafted(seen(2, "a"), seen(3, "b"))
    assert "from torchproof import host_call\n" in text
    new = """\
    where = host_call(
        positions, ids, 1, like=ids.new_empty((ids.shape[0], 4), dtype=torch.int64)
    )
"""
    assert "".join(new.split()).replace(",)", ")") in "".join(text.split()).replace(
        ",)", ")"
    )


def test_local_tensors_of_the_caller_are_no_arguments() -> None:
    sizes = Value("integers", (2, 4))
    local = Value("tensor", (2, 4, 8), "torch.float32", "cpu")
    text = drafted(*(seen(2, "a", scope={"0": sizes, ".x": local}),) * 2)
    assert "host_call(" in text


OTHER = Value("tensor", (2, 5), "torch.int64", "cpu")
REFUSED = {
    "is not known before": (seen(2, "a"), seen(2, "b", results=(OTHER,))),
    "always gets the same values": (seen(2, "a"), seen(3, "a")),
    "changes an argument": (seen(2, "a", problem="it changes an argument"),),
    "does not run": (),
    "not tensors": (seen(2, "a", results=(Value("other", dtype="list"),)),),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_known_shape_is_refused(reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        drafted(*REFUSED[reason])


BLOCK = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def forward(self, x, labels):
        probabilities = x.log_softmax(-1)
        with torch.backends.cudnn.flags(enabled=False):  # <-
            counts = (labels >= 0).sum(-1)
            loss = F.ctc_loss(probabilities, labels, counts, counts, blank=self.blank)
        return loss
"""
LOSS = Value("tensor", (), "torch.float32", "cpu")
PROBABILITIES = Value("tensor", (9, 2, 8), "torch.float32", "cpu")


def drafted_block(text: str = BLOCK, **changes: object) -> str:
    observed = [
        replace(seen(2, given, results=(LOSS,)), scope={"1": PROBABILITIES}, **changes)  # type: ignore[arg-type]
        for given in "ab"
    ]
    at = replace(site(text, "GB111"), probe=lambda text: observed)
    return statement(at).text


def test_a_block_becomes_a_function_on_the_host() -> None:
    text = drafted_block()
    assert "def _loss_on_host(labels, probabilities, blank):\n    with torch" in text
    assert "blank=blank)\n    return loss\n" in text
    assert "    loss = host_call(\n            _loss_on_host" in text or (
        "loss = host_call(_loss_on_host" in text
    )
    assert "like=probabilities.new_empty(())" in text
    assert "from torchproof import host_call\n" in text


def test_a_block_may_end_with_a_return() -> None:
    text = drafted_block(
        BLOCK.replace("loss = F", "return F").replace("return loss", "")
    )
    assert "def _forward_on_host(labels, probabilities, blank):\n    with torch" in text
    assert "        return host_call(" in text
    assert "like=probabilities.new_empty(())" in text


REFUSED_BLOCKS = {
    "would leave the graph": BLOCK.replace("(labels >= 0)", "(labels @ labels)"),
    "needs the object": BLOCK.replace("(labels >= 0)", "self.head(labels)"),
    "does more than compute": BLOCK.replace("counts = (", "return (")
    + "        y = 1\n",
    "assigns nothing": BLOCK.replace("return loss", "return x"),
    "may not be assigned": BLOCK.replace(
        "            loss = F",
        "            if self.training:\n                loss = F",
    ),
}


@pytest.mark.parametrize("reason", REFUSED_BLOCKS)
def test_other_blocks_are_refused(reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        drafted_block(REFUSED_BLOCKS[reason])


def test_a_size_that_was_always_the_same_is_not_a_constant() -> None:
    result = Value("tensor", (4,), "torch.float32", "cpu")
    with pytest.raises(Refused, match="is not known before"):
        drafted_block(results=(result,))


BLOCK_WITH_GRADIENT = """
import torch
from torch import nn

class Net(nn.Module):
    blank = 0

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 12)

    def forward(self, x, labels):
        lengths = torch.full((x.shape[0],), x.shape[1], dtype=torch.long)
        values = self.head(x).log_softmax(-1).transpose(0, 1)
        labels = labels.clamp(0, 11)  # ctc_loss reads beyond its input for others
        counts = (labels > 0).sum(-1)
        with torch.backends.cudnn.flags(enabled=False):
            loss = nn.functional.ctc_loss(
                values, labels, lengths, counts, blank=self.blank
            )
        return loss * 2

def make():
    labels = torch.tensor([[[1, 2, 3], [4, 5, 0]], [[7, 2, 0], [4, 5, 6]]])
    return Net(), [(torch.randn(2, 9, 8), each) for each in (*labels, labels[0])]
"""


@pytest.mark.slow
def test_a_block_with_a_gradient_runs_on_the_host(tmp_path: Path) -> None:
    run = fixed(tmp_path, BLOCK_WITH_GRADIENT, train=True)
    (accepted,) = verified(run)
    assert "host" in accepted.title and accepted.tier == "safe"
    assert accepted.receipt is not None
    assert accepted.receipt.graphs[1] == 1 and accepted.receipt.breaks[1] == 0
    assert accepted.receipt.outputs == "same"


def test_a_random_function_with_a_gradient_is_a_problem() -> None:
    call_probe.observed.clear()
    for function in (torch.sin, lambda x: x * numpy.random.rand()):
        call_probe.probed(function, {}, differentiable=True)(torch.ones(2))
    problems = [each.problem for each in call_probe.observed]
    call_probe.observed.clear()
    assert problems[0] is None and "random numbers" in (problems[1] or "")
