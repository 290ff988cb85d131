"""one_hot without num_classes has to look at the largest label."""
import torch
import torch.nn.functional as F
from torch import nn


class SoftTargets(nn.Module):
    def forward(self, logits, labels):
        target = F.one_hot(labels).float()
        return -(target * logits.log_softmax(-1)).sum()


def make():
    return SoftTargets(), [(torch.randn(3, 4), torch.tensor([0, 1, 3]))] * 2


EXPECT = [{"code": "GB103", "kind": "graph_break", "line": "F.one_hot(labels)", "fix": ["num_classes"]}]
