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
