"""Factories that run on two ranks; each rank has data of its own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

SLEPT_S = 0.03
Made = tuple[Any, list[tuple[torch.Tensor]]]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def data() -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [(torch.randn(4, 8, generator=generator),)]


def make() -> Made:
    return Net(), data()


class Planted(torch.nn.Module):
    """Each method goes wrong on rank 1 when it is compiled alone, except `fine`.

    The other rank goes on and waits in the collective. Rank 1 sleeps at the end, where
    nobody waits for it any more.
    """

    def fine(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def wrong(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and dist.get_rank() == 1:
            return x * 2
        return x * 3

    def dying(self, x: torch.Tensor) -> torch.Tensor:
        return x + fate() if torch.compiler.is_compiling() else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        x = self.dying(self.wrong(self.fine(x)))
        dist.all_reduce(total)
        if dist.get_rank() == 1:
            time.sleep(SLEPT_S)
        return x / total


@torch.compiler.assume_constant_result
def fate() -> int:
    """Runs while it is traced."""
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def planted() -> Made:
    return Planted(), data()
