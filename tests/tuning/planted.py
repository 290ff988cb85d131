"""A model whose best strategy is known: its blocks compiled, the rest as it is.

What its parts do when they are compiled: `Block` no longer waits; all outside of blocks
gets slower, and `hangs`, `crashes` and `errs` do what they are called.
"""

import os
import signal
import time

import torch
from torch import Tensor, nn

WAIT_S = 0.004


@torch.library.custom_op("planted::wait", mutates_args=())
def wait(x: Tensor) -> Tensor:
    time.sleep(8 * WAIT_S)
    return x.clone()


@wait.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("planted::hang", mutates_args=())
def hang(x: Tensor) -> Tensor:
    return x.clone()


@hang.register_fake
def _(x: Tensor) -> Tensor:
    time.sleep(600)
    return torch.empty_like(x)


@torch.library.custom_op("planted::crash", mutates_args=())
def crash(x: Tensor) -> Tensor:
    return x.clone()


@crash.register_fake
def _(x: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return torch.empty_like(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(WAIT_S)
        return x + self.linear(x)


class Part(nn.Module):
    """Eager: a linear layer. Compiled: whatever it was made for, as well."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(16, 16), part

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            if self.part == "hangs":
                x = hang(x)
            elif self.part == "crashes":
                x = crash(x)
            elif self.part == "errs":
                x = x * 1.01
            else:
                x = wait(x)
        return self.linear(x)


class Model(nn.Module):
    def __init__(self, *parts: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        for part in parts:
            # Of a class of its own each: alike, they would be blocks as well.
            self.add_module(part, type(part.title(), (Part,), {})(part))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        for name, child in self.named_children():
            if name != "blocks":
                x = child(x)
        return x


def make() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    return Model("waits").eval(), [(torch.randn(2, 16),)]


def make_hostile() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    return Model("hangs", "crashes", "errs").eval(), [(torch.randn(2, 16),)]


def make_idle() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    """Nothing to gain: eager is as fast as anything."""
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU()), [(torch.randn(2, 16),)]


class Broken(nn.Module):
    """Slow in eager, with a graph break in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(WAIT_S)
        x = self.linear(x).relu()
        torch._dynamo.graph_break()
        return x + 1


def make_broken() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    return nn.Sequential(Broken(), Broken()).eval(), [(torch.randn(2, 8),)]
