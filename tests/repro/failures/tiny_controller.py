"""A controller of a few numbers, called often: compiled, it is slower than eager."""

import torch
from torch import nn


class FeedbackLaw(nn.Module):
    """A proportional law for one joint of an arm."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.register_buffer("gain", torch.tensor(gain))

    def forward(self, deviation: torch.Tensor) -> torch.Tensor:
        return deviation * self.gain


class JointLimits:
    """What the arm may do at all; checked once, when it is switched on."""

    def __init__(self, lowest: float, highest: float) -> None:
        if lowest >= highest:
            raise ValueError("the lowest position has to lie below the highest")
        self.lowest, self.highest = lowest, highest

    def resting_point(self) -> float:
        return (self.lowest + self.highest) / 2


class ArmController(nn.Module):
    """One step of control for an arm with four joints."""

    def __init__(self) -> None:
        super().__init__()
        limits = JointLimits(-1.0, 1.0)
        self.law = FeedbackLaw(0.4)
        self.register_buffer("rest", torch.full((4,), limits.resting_point()))

    def forward(self, position: torch.Tensor) -> torch.Tensor:
        return self.law(self.rest - position)


def make():
    model = ArmController().eval()
    return model, [(torch.randn(4),) for _ in range(3)]
