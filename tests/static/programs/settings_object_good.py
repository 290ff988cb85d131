"""An object of settings has words that tensors have too; torch answers about itself."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    dim: int = 2
    max: float = 2.0
    device: str = "cpu"


class Scaled(nn.Module):
    def forward(self, x, settings):
        if settings and settings.dim > 1:
            x = x * settings.max
        x = x.to(settings.device) if settings else x
        if torch.is_autocast_cpu_enabled() or torch.is_complex(x):
            x = x + 1
        if torch.promote_types(x.dtype, torch.half) == x.dtype and not x.is_complex():
            x = x - 1
        return x


def make():
    return Scaled(), [(torch.randn(4, 2), Settings())]
