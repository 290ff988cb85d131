import torch
import torch.nn.functional as F
from torch import nn


# Boolean-mask read.
class MaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, ids, labels):
        hidden = self.embed(ids)
        picked = hidden[labels >= 0]  # <- GB103
        logits = self.head(picked)
        return F.cross_entropy(logits, labels.clamp(min=0).flatten()[:logits.shape[0]])


def bad():
    ids = torch.randint(0, 10, (2, 6))
    labels = torch.tensor([[1, -1, 2, -1, -1, 3], [-1, -1, 4, 5, -1, -1]])
    return MaskedLM(), [(ids, labels)] * 3


# one_hot without num_classes has to look at the largest label.
class SoftTargets(nn.Module):
    def forward(self, logits, labels):
        target = F.one_hot(labels).float()  # <- GB103
        return -(target * logits.log_softmax(-1)).sum()


def bad_4():
    return SoftTargets(), [(torch.randn(3, 4), torch.tensor([0, 1, 3]))] * 2
