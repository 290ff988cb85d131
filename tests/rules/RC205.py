import torch
import torch.nn.functional as F
from torch import nn


# Some batches arrive in double precision (numpy default), the rest in float.
def standardise(x):  # <- RC205
    return (x - x.mean()) / (x.std() + 1e-5)


def bad():
    return standardise, [(torch.randn(8),), (torch.randn(8, dtype=torch.float64),), (torch.randn(8),)]


# Labels are int64 in training and int32 from the exported data set.
class Loss(nn.Module):
    def forward(self, logits, labels):  # <- RC205
        return F.cross_entropy(logits, labels.long())


def bad_2():
    logits = torch.randn(3, 4)
    return Loss(), [(logits, torch.tensor([0, 1, 2])), (logits, torch.tensor([0, 1, 2], dtype=torch.int32))] * 2


# Everything is cast before the call.
def good():
    inputs = [torch.randn(8), torch.randn(8, dtype=torch.float64), torch.randn(8)]
    return standardise, [(x.float(),) for x in inputs]
