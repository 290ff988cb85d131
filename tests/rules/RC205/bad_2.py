"""Labels are int64 in training and int32 from the exported data set."""
import torch
import torch.nn.functional as F
from torch import nn


class Loss(nn.Module):
    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels.long())


def make():
    logits = torch.randn(3, 4)
    return Loss(), [(logits, torch.tensor([0, 1, 2])), (logits, torch.tensor([0, 1, 2], dtype=torch.int32))] * 2


EXPECT = [{"code": "RC205", "kind": "recompile", "line": "def forward(self, logits, labels):", "fix": ["dtype", "cast", ".to(", ".long()"]}]
