"""Trains with accelerate, compiled: `accelerator.prepare` first, then compile.

accelerate launch accelerate_training.py checkpoint
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchproof


def train(
    checkpoint: str, compile: Callable[[Any], Any] = torchproof.compile
) -> tuple[nn.Module, list[float]]:
    """Trains, saves a checkpoint, goes on from it; the model, and all losses."""
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    # Not before `prepare`: for mixed precision, it replaces the model's forward.
    model = compile(model)
    losses = []
    for epoch in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        if epoch == 0:
            accelerator.save_state(checkpoint)
            accelerator.load_state(checkpoint)
    return model, losses


if __name__ == "__main__":
    model, losses = train(sys.argv[1])
    print(losses)
    print(torchproof.status(model))
