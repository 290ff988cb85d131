import torch
from torch import nn


# The global state is the same for every call.
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            shift = x.mean()
        return self.fc(x - shift).softmax(-1)


def before_call(model, index):
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


def good():
    return Model(), [(torch.randn(2, 4),)] * 4
