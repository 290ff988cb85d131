import torch
from torch import nn


# A bool flag on the module that is switched between calls.
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.use_rope = True

    def forward(self, x):
        q = self.fc(x)
        if self.use_rope:  # <- RC213
            q = q * q.cos()
        return q.softmax(-1)


def before_call(model, index):
    model.use_rope = index % 2 == 0


def bad_2():
    return Attention(), [(torch.randn(2, 4),)] * 4
