"""Settings and random numbers that compiled code does not look at again."""

import os

import numpy as np
import torch


def every(x):
    if os.environ.get("TORCHPROOF_SCALE") == "2":  # <- NM411
        x = x * 2
    if "TORCHPROOF_SHIFT" in os.environ:  # <- NM411
        x = x + 100
    return x + torch.from_numpy(np.random.rand(4))  # <- NM413


def make():
    return every, [(torch.ones(4),)] * 2
