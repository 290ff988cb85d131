"""The model that app.py serves, and the call that its pack is built for."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 16


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(x)
        return scores.softmax(-1)


def make() -> tuple[nn.Module, list[tuple[torch.Tensor]]]:
    """The target of `torchproof pack model.py:make --for deploy`."""
    torch.manual_seed(0)
    return Classifier().eval(), [(torch.randn(1, WIDTH),)]
