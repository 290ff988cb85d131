"""Targets whose passes change state, some of them wrong at batch size 16."""

from __future__ import annotations

from typing import Any

import torch

Target = tuple[Any, list[tuple[torch.Tensor, ...]]]


class Normalised(torch.nn.Module):
    """Keeps running means; `factor` applies to compiled outputs at batch size 16."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x))
        if torch.compiler.is_compiling() and x.shape[0] == 16:
            y = y * self.factor
        return y


class Counting(torch.nn.Module):
    """Outputs depend on a number that is not a tensor's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.calls


def inputs(batch: int) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(batch, 8),)]


def right(batch: int = 8) -> Target:
    return Normalised().train(), inputs(batch)


def wrong_at_16(batch: int = 8) -> Target:
    return Normalised(factor=100.0).train(), inputs(batch)


def optimised(batch: int = 8) -> Target:
    """A whole training step: the optimizer makes its state in the first pass."""
    model = Normalised().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, inputs(batch)


def counting(batch: int = 8) -> Target:
    model = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        model.calls += 1
        return model(x)

    return step, inputs(batch)


def dropping(batch: int = 8) -> Target:
    return torch.nn.Dropout(0.5).train(), inputs(batch)
