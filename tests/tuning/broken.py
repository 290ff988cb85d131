"""Modules that break the graph in the middle, called one after the other."""

import time

import torch
from torch import Tensor, nn

WAIT_S = 0.004


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(WAIT_S)
        x = self.inner(x).relu()
        torch._dynamo.graph_break()
        return x + 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Part(), Part()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * 2) * 2


def make() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    return Model().eval(), [(torch.randn(2, 8),)]
