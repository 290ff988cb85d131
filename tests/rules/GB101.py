import math
import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.head = nn.Linear(16, 4)

    def forward(self, x, labels):
        logits = self.head(self.body(x))
        loss = F.cross_entropy(logits, labels)
        logs = {"loss": loss.item()}  # <- GB101
        return loss * 0.5, logits.softmax(-1), logs


def bad():
    labels = torch.tensor([0, 1, 2])
    return Classifier(), [(torch.randn(3, 8), labels)] * 4


# Ragged split.
class RaggedPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(6, 6)

    def forward(self, packed, sizes):
        packed = self.proj(packed)
        counts = sizes.tolist()  # <- GB101
        parts = torch.split(packed, counts)
        return torch.stack([part.mean(0) for part in parts])


def bad_3():
    return RaggedPool(), [(torch.randn(9, 6), torch.tensor([2, 3, 4]))] * 2


# A value read inside a Python loop.
def power_iteration(matrix, vector):
    norms = []
    for _ in range(4):
        vector = matrix @ vector
        norm = vector.norm()
        norms.append(float(norm))  # <- GB101
        vector = vector / norm
    return vector, norms


def bad_4():  # <- NC805
    return power_iteration, [(torch.eye(5) * 2 + 0.1, torch.ones(5)) for _ in range(3)]


# math.* functions want a Python number, so the tensor is read on the host.
class AmaxScale(nn.Module):
    def forward(self, x):
        amax = x.abs().amax()
        exponent = math.ceil(amax)  # <- GB101
        return x.clamp(-1, 1), exponent


def bad_5():
    return AmaxScale(), [(torch.rand(4, 4),)] * 2


# A router picks an expert's weight from a Python list with a tensor index.
class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.temperatures = [0.5, 1.0, 2.0]

    def forward(self, x):
        choice = self.gate(x).mean(0).argmax() * 0
        temperature = self.temperatures[choice]  # <- GB101
        return x / temperature


def bad_6():
    return Router(), [(torch.randn(2, 4),)] * 2


# One training step with three troubles of different kinds.
class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x, labels):
        logits = self.fc(x)
        valid = logits[labels >= 0]  # <- GB103
        print("valid rows", valid.shape[0])  # <- GB104
        loss = F.cross_entropy(valid, labels.clamp(min=0)[: valid.shape[0]])
        value = loss.item()  # <- GB101
        return loss * 2, value


def bad_7():
    return Step(), [(torch.randn(4, 6), torch.tensor([0, -1, 2, 3]))] * 3
