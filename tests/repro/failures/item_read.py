"""A quantised encoder whose scale is read as a Python number in every layer."""

import torch
from torch import nn


class CalibratedQuantizer(nn.Module):
    """Rounds activations to eight bits; the range follows the largest value seen."""

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("observed_peak", torch.zeros(()))

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        peak = activations.detach().abs().amax()
        smoothed = self.decay * self.observed_peak + (1 - self.decay) * peak
        # The scale has to be a plain number for the export tool of the warehouse.
        scale = smoothed.item() / 127.0 + 1e-6
        return (activations / scale).round().clamp(-127, 127) * scale


class QuantizedMixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.normalise = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.quantizer = CalibratedQuantizer()
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.widen(self.normalise(tokens)).relu()
        return tokens + self.narrow(self.quantizer(hidden))


class WarehouseEncoder(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.earlier = QuantizedMixer(width)
        self.later = QuantizedMixer(width)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = self.later(self.earlier(tokens))
        return self.head(tokens.mean(dim=1)).log_softmax(dim=-1)


def make():
    model = WarehouseEncoder().eval()
    return model, [(torch.randn(4, 12, 32),) for _ in range(3)]
