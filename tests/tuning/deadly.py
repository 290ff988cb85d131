"""A target that takes its worker with it when a part of it is compiled."""

import os
import signal

import torch
from planted import Block
from torch import Tensor, nn


@torch.library.custom_op("planted::kill", mutates_args=())
def kill(x: Tensor) -> Tensor:
    return x.clone()


@kill.register_fake
def _(x: Tensor) -> Tensor:
    os.kill(os.getppid(), signal.SIGKILL)
    return torch.empty_like(x)


class Deadly(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return kill(x) if torch.compiler.is_compiling() else x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.deadly = Deadly()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.deadly(x)


def make() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    return Model().eval(), [(torch.randn(2, 16),)]
