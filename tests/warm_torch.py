"""Imported once by the fork server: what compilations load is then shared.

There is one fork server in a process, and what the first test asks of it holds for all:
so everything that any of them needs is here.
"""

import gc
import os

# Asks NVML instead of CUDA, which cannot be used again after a fork.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import functorch.compile  # noqa: F401
import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch.profiler
from forked_commands import skip_guard_latency

import torchproof.measure.strategy_worker
import torchproof.observe.child
import torchproof.torch_private.hooks  # noqa: F401
from torchproof.torch_private import contract

skip_guard_latency()


class _Net(torch.nn.Module):
    """Modules, a break, a size that varies; nothing that starts threads, as forks do
    not have them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.ReLU())
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x * self.scale)
        torch._dynamo.graph_break()
        return torch.relu(y).view(-1) + 1


if not torch.cuda.is_available():
    net = torch.compile(_Net(), backend="eager")
    for rows in (2, 3, 5):
        net(torch.ones(rows, 4))
    del net
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    torch._dynamo.utils.counters.clear()

contract.contract()  # it remembers the table, which takes long to parse

gc.collect()
gc.freeze()  # a collection in a child would copy every page that it looks at
