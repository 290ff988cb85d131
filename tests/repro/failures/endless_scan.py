"""A recurrence over a long signal: its compilation does not end in sensible time."""

import torch
from torch import nn


class LeakyReservoir(nn.Module):
    """An echo-state network; its state leaks a little at each sample."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, size)
        self.recur = nn.Linear(size, size, bias=False)
        self.leak = nn.Parameter(torch.full((size,), 0.3))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        entered = self.enter(signal)
        state = entered.new_zeros(entered.shape[0], entered.shape[2])
        for sample in entered.unbind(dim=1):
            fresh = torch.tanh(sample + self.recur(state))
            state = state + self.leak * (fresh - state)
        return state


class HeartbeatClassifier(nn.Module):
    """Kinds of heartbeats in a recording."""

    def __init__(self, leads: int = 3, size: int = 12, kinds: int = 4) -> None:
        super().__init__()
        self.smooth = nn.Conv1d(leads, leads, kernel_size=5, padding=2, groups=leads)
        self.reservoir = LeakyReservoir(leads, size)
        self.kinds = nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, kinds))

    def forward(self, recording: torch.Tensor) -> torch.Tensor:
        smoothed = self.smooth(recording.transpose(1, 2)).transpose(1, 2)
        return self.kinds(self.reservoir(smoothed)).softmax(dim=-1)


def make():
    model = HeartbeatClassifier().eval()
    return model, [(torch.randn(2, 2400, 3),)]
