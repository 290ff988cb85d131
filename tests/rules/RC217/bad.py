"""train() and eval() alternate: the first eval call recompiles, then both graphs are there."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.fc(x))


def make():
    return Net(), [(torch.randn(2, 4),)] * 4


def before_call(net, index):
    net.train(index % 2 == 0)


EXPECT = [{"code": "RC217", "kind": "recompile", "line": "return self.drop(self.fc(x))", "severity": "low", "fix": ["eval()", "train", "warm up"]}]
