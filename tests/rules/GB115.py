import os
import random
import time
import torch
import torch.nn.functional as F
from torch import nn


# Timing a block with time.perf_counter() inside the forward.
class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.durations = []

    def forward(self, x):
        x = x * 2
        started = time.perf_counter()  # <- GB115
        x = self.body(x)
        stopped = time.perf_counter()  # <- GB115
        return x + 1, (started, stopped)


def bad():
    return Timed(), [(torch.randn(2, 4),)]


# A cached file is looked for on disk in every call.
class CachedBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if os.path.exists("/nonexistent/bias.pt"):  # <- GB115
            x = x + 1
        return x.relu()


def bad_2():
    return CachedBias(), [(torch.randn(2, 4),)] * 3


# A private torch.Generator for reproducible noise.
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.generator = torch.Generator()

    def forward(self, x):
        x = self.fc(x)
        noise = torch.randn(x.shape, generator=self.generator)  # <- GB115
        return x + 0.1 * noise


def bad_4():
    return Noisy(), [(torch.randn(2, 4),)] * 3


# Seeding inside the compiled function, for a reproducible dropout.
def reproducible(x):
    x = x * 2
    torch.manual_seed(7)  # <- GB115
    return F.dropout(x, 0.5)


def bad_6():
    return reproducible, [(torch.randn(4),)] * 3


# The random() of the Python standard library is not traced (random.uniform is).
class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        x = self.layers[0](x)
        keep = random.random()  # <- GB115<2.14
        y = self.layers[1](x)
        return y if keep < 2.0 else x


def bad_7():
    return LayerDrop(), [(torch.randn(2, 4),)]


# An optional dependency is probed with try/except ImportError in the forward.
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        try:
            from fused_kernels_that_are_not_installed import rms_norm  # <- GB115
        except ImportError:
            return x * x.pow(2).mean(-1, keepdim=True).rsqrt() * self.weight
        return rms_norm(x, self.weight)


def bad_8():  # <- NC805
    return Norm(), [(torch.randn(2, 4),)] * 3


# fork_rng around a sampling step.
def sample(logits):
    probabilities = logits.softmax(-1)
    scope = torch.random.fork_rng()  # <- GB115<2.14
    with scope:  # <- GB111
        noise = torch.rand_like(probabilities)
    return (probabilities / noise).argmax(-1)


def bad_9():
    return sample, [(torch.randn(2, 5),)] * 3
