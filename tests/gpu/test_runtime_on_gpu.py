"""torchproof.compile with CUDA tensors: streams, CUDA graphs and memory.

tests/runtime/test_faults.py has lost devices.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import torchproof
from torchproof.runtime import compile_job

# What torch recommends on a GPU is no error of the program under test.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).relu())


def twins() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = Net().cuda()
    twin = Net().cuda()
    twin.load_state_dict(model.state_dict())
    return model, twin


@pytest.mark.parametrize("strategy", ["full", "full:reduce-overhead"])
def test_inference_and_training_are_as_eager(strategy: str) -> None:
    model, twin = (m.eval() for m in twins())
    torchproof.compile(model, strategy=strategy)
    with torch.inference_mode():
        for _ in range(5):
            x = torch.randn(8, 64, device="cuda")
            torch.testing.assert_close(model(x), twin(x), rtol=1e-3, atol=1e-3)
    status = torchproof.status(model)
    assert status.compiled_calls == 5 and not status.fallbacks, str(status)
    if strategy == "full":  # the caller's stream is used
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.inference_mode(), torch.cuda.stream(side):
            answer = model(x)
        side.synchronize()
        with torch.inference_mode():
            torch.testing.assert_close(answer, twin(x), rtol=1e-3, atol=1e-3)
    model.train(), twin.train()
    for _ in range(4):
        x = torch.randn(8, 64, device="cuda")
        for each in (model, twin):
            each.zero_grad(set_to_none=True)
            each(x).square().mean().backward()
        for (name, given), wanted in zip(
            model.named_parameters(), twin.parameters(), strict=True
        ):
            torch.testing.assert_close(
                given.grad, wanted.grad, rtol=1e-2, atol=1e-3, msg=name
            )
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)
    assert not torchproof.status(model).fallbacks


def test_out_of_memory_in_the_first_run_leaves_no_memory_taken() -> None:
    """Compiled code that allocates too much is left, and eager answers."""
    model, twin = (m.eval() for m in twins())

    def greedy(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            return torch.empty(1 << 44, device="cuda")

        return run

    torchproof.compile(model, backend=greedy)
    x = torch.randn(8, 64, device="cuda")
    with torch.inference_mode():
        right = twin(x)  # cuBLAS allocates its workspace at the first product
        before = torch.cuda.memory_allocated()
        answer = model(x)
        torch.testing.assert_close(answer, right, rtol=1e-3, atol=1e-3)
    del answer
    assert torch.cuda.memory_allocated() <= before + (32 << 20)
    [item] = torchproof.status(model).fallbacks
    assert item.kind == "first run" and "out of memory" in item.why


def test_the_child_that_generates_code_keeps_no_memory_of_the_device() -> None:
    model, _ = twins()
    torchproof.compile(model)
    with torch.inference_mode():
        model(torch.randn(8, 64, device="cuda"))
    compile_job.shared_worker().close()
    time.sleep(1.0)
    free, total = torch.cuda.mem_get_info()
    assert free > 0.5 * total
