"""Recordings of CUDA graphs under load are attributed to their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from served_requests import STALLED, LoadRun, work

import torchproof

# Torch warns of what may be faster; that is not the point here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def scale(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T).relu() * 2


def example(size: int) -> torch.Tensor:
    x = torch.ones(size, 64, device="cuda")
    torch._dynamo.mark_dynamic(x, 0)
    return x


@pytest.fixture
def recorded() -> Iterator[Callable[[int], None]]:
    """One compiled graph for all sizes; Inductor records one CUDA graph for each."""
    torch._dynamo.reset()
    step = torch.compile(scale, mode="reduce-overhead")

    def answer(size: int) -> None:
        with torch.no_grad():
            step(example(size))
        torch.cuda.synchronize()

    for size in (16, 32):
        for _ in range(4):  # a warm-up, a recording, replays
            answer(size)
    yield answer
    torch._dynamo.reset()


def test_a_recording_for_a_new_size_is_attributed(
    tmp_path: Path, recorded: Callable[[int], None]
) -> None:
    def answer(number: int) -> None:
        work()
        # The first call of a size warms up, and the second one records.
        recorded(48 if number in (STALLED, STALLED + 1) else 16 + 16 * (number % 2))

    run = LoadRun(tmp_path, answer)
    recordings = run.of_kind("cudagraph")
    assert {each.request for each in recordings} == {STALLED, STALLED + 1}
    assert not run.of_kind("compile")
    [again] = [each for each in recordings if each.data["how"] == "recording"]
    assert again.request == STALLED + 1
    assert again.data["again"] and again.data["new_shapes"]
    assert "48x64" in again.data["shapes"]
    cause = run.causes["LT104"]
    assert set(cause.culprits) <= {STALLED, STALLED + 1} and cause.culprits


def test_a_step_of_torchproof_graph_is_recorded_in_its_request(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 64).cuda().eval()
    step = torchproof.graph(model, (torch.ones(8, 64, device="cuda"),))
    sizes = {size: torch.ones(size, 64, device="cuda") for size in (8, 24)}
    for _ in range(3):
        step(sizes[8])

    def answer(number: int) -> None:
        work()
        step(sizes[24 if number == STALLED else 8])
        torch.cuda.synchronize()

    run = LoadRun(tmp_path, answer)
    steps = [e for e in run.of_kind("cudagraph") if e.data["how"] == "step"]
    assert {each.request for each in steps} == {STALLED}
    assert STALLED in run.causes["LT104"].culprits
