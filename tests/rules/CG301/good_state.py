"""A module keeps its state in a buffer that it writes to."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8, device=DEVICE)
        self.register_buffer("state", torch.zeros(8, 8, device=DEVICE))

    def forward(self, x):
        y = torch.tanh(self.fc(x) + self.state)
        self.state.copy_(y.detach())
        return y.mean()


def make():
    model = Memory().requires_grad_(False)
    return model, [(x,) for x in inputs()]


COMPILE = {"mode": "reduce-overhead"}
EXPECT = []
