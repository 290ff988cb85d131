"""The scaler is switched by the type that is used."""

import torch


def train(model, optimizer, x, half):
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
