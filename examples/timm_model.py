"""Compiles a timm model, which serves batches of any size, and fine-tunes it."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import nn

import torchproof


def outputs(model: nn.Module) -> list[torch.Tensor]:
    """Predictions for batches of several sizes."""
    size = model.pretrained_cfg["input_size"]
    torch.manual_seed(1)
    with torch.no_grad():
        return [model.eval()(torch.randn(n, *size)) for n in (1, 3, 4)]


def fine_tune(model: nn.Module, steps: int = 3) -> list[float]:
    size: Any = model.pretrained_cfg["input_size"]
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    torch.manual_seed(2)
    losses = []
    for _ in range(steps):
        images, labels = torch.randn(2, *size), torch.randint(0, 10, (2,))
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def make() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model("test_vit", num_classes=10)
    return model


if __name__ == "__main__":
    model = torchproof.compile(make())
    print([tuple(each.shape) for each in outputs(model)])
    print(fine_tune(model))
    print(torchproof.status(model))
