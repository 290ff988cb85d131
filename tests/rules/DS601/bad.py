"""The batch is marked dynamic, but a test for equality pins it to one value."""
import torch
import torch._dynamo
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if x.shape[0] == 8:
            x = x * 2
        return x.relu()


def make():
    x = torch.randn(8, 4)
    torch._dynamo.mark_dynamic(x, 0)
    return Head(), [(x,)]


EXPECT = [{"code": "DS601", "kind": "specialization", "line": "if x.shape[0] == 8:", "fix": ["maybe_mark_dynamic", "mark_dynamic", "==", "branch"]}]
