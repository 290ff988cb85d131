"""Gradients are scaled though nothing can vanish."""

import torch


def train(model, optimizer, x):
    scaler = torch.amp.GradScaler("cpu")  # <- CF109
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
