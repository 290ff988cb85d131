"""A branch on the number of selected tokens: the size is only known when the data are."""
import torch
import torch._dynamo
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, tokens, keep):
        kept = self.fc(tokens)[keep]
        if kept.shape[0] > 2:
            return kept.mean(0)
        return kept.sum(0)


def make():
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    return Pool(), [(torch.randn(4, 4), torch.tensor([True, True, False, True]))] * 2


EXPECT = [{"code": "GB102", "kind": "graph_break", "line": "if kept.shape[0] > 2:", "fix": ["torch._check", "torch.cond", "torch.where", "guard_or", "mask"]}]
