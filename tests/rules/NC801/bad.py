"""The compiled sampler is made but nobody calls it."""
import torch
from torch import nn

AS_WRITTEN = True


def sample(logits):
    return torch.softmax(logits / 0.7, -1).argmax(-1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.sampler = torch.compile(sample, backend="eager")

    def forward(self, x):
        return self.fc(x).argmax(-1)


def make():
    return Generator(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC801", "kind": "no_op", "line": "self.sampler = torch.compile(sample", "fix": ["call", "use", "remove"]}]
