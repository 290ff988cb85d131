"""What the watched eager runs of a step see, and how much Python watching takes."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.eager_recorder import EagerRecorder

# Each of them starts the profile function of a watched run.
MOST_EVENTS = 220


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


def model() -> nn.Module:
    return nn.Sequential(Block(), Block(), Block()).eval()


def test_observers_of_blocks_are_no_code_of_the_step() -> None:
    graphed = torchproof.graph(model(), strategy="regional")
    graphed(torch.ones(2, 4))
    status = graphed.status()
    assert status.recordings == 1 and not status.stops
    files = {code.co_filename for code in graphed._snapshot.state.ran.codes}
    assert not [each for each in files if each.endswith(("weak.py", "overrides.py"))]


def test_each_shape_is_shown_to_a_regional_preparation() -> None:
    graphed = torchproof.graph(model(), strategy="regional")
    for size in (2, 3):
        torch.testing.assert_close(
            graphed(torch.ones(size, 4)), graphed.step(torch.ones(size, 4))
        )
    assert graphed.status().recordings == 2


def test_recording_an_operation_takes_few_calls_of_python() -> None:
    x = torch.ones(4, 4)
    events = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal events
        events += 1

    with EagerRecorder(x.device, [x]):
        torch.add(x, x)  # fills caches
        sys.setprofile(count)
        try:
            for _ in range(10):
                torch.add(x, x)
        finally:
            sys.setprofile(None)
    assert 0 < events < 10 * MOST_EVENTS
