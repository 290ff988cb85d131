"""A user's program, for the type checker alone: mypy checks it with the source, and
scripts/distributions.py against the wheel.

A `type: ignore` that is not needed is an error: the checker has to object there.
"""

from typing import assert_type

import torch
from torch import Tensor, nn

import torchproof


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))

    def layers(self) -> int:
        return 1


def double(x: Tensor, times: int = 2) -> Tensor:
    return x * times


@torchproof.compile(wait=False, mode="default")
def triple(x: Tensor, times: int = 3) -> Tensor:
    return x * times


@torchproof.compile
def half(x: Tensor) -> Tensor:
    return x / 2


model = torchproof.compile(Net(), deadline=60.0, strategy="full")
assert_type(model, Net)
assert_type(model.layers(), int)
assert_type(torchproof.compile(double)(torch.ones(2), times=4), Tensor)
assert_type(triple(torch.ones(2)), Tensor)
assert_type(half(torch.ones(2)), Tensor)

triple(torch.ones(2), "three")  # type: ignore[arg-type]
torchproof.compile(double)("two")  # type: ignore[arg-type]
torchproof.compile(Net(), deadline="soon")  # type: ignore[call-overload]
torchproof.compile(7)  # type: ignore[call-overload]

status = torchproof.status(model)
assert_type(status.compiled_calls, int)

step = torchproof.graph(Net(), (torch.ones(2, 8),))
print(step(torch.ones(2, 8)), step.status())

run = torchproof.check("model.py:make", effort="quick")
assert_type(run, torchproof.Run)
torchproof.bench(Net(), [(torch.ones(2, 8),)], strategies=("full",), train=True)
torchproof.check("model.py:make", efort="quick")  # type: ignore[call-arg]
torchproof.tune("model.py:make", budget_s="long")  # type: ignore[arg-type]
for finding in run.findings:
    assert_type(finding, torchproof.Finding)
    assert_type(finding.code, str)

torchproof.check("model.py:make", effort=3)  # type: ignore[arg-type]
torchproof.check(Net(), [(torch.ones(2, 8),)], train=True)
torchproof.bench(Net(), torch.ones(2, 8), strategy="full")  # type: ignore[call-arg]
