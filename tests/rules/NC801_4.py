import torch
from torch import nn

OPTIONS = {"good": {"as_written": True}}


# The compiled sampler is called.
def sample(logits):
    return torch.softmax(logits / 0.7, -1).argmax(-1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.sampler = torch.compile(sample, backend="eager")

    def forward(self, x):
        return self.sampler(self.fc(x))


def good():
    return Generator(), [(torch.randn(2, 4),)] * 3
