"""int(), float() and math.* of shapes and Python numbers are free; .numpy() is traced."""
import math

import numpy as np
import torch


def sinusoid(x):
    width = int(x.shape[-1])
    scale = float(width) / math.sqrt(width)
    grid = np.linspace(0.0, 1.0, width)
    window = torch.from_numpy(np.sin(grid)).to(x.dtype)
    mirrored = torch.from_numpy(np.flip(x.detach().numpy(), -1).copy())
    return (x + mirrored) * window * scale


def make():
    return sinusoid, [(torch.randn(3, 8),)] * 3


EXPECT = []
