import torch
from torch import nn


def before_call(net, index):
    if not net.frozen:
        net.train(index % 2 == 0)


# train() and eval() alternate; or BatchNorm and dropout are in train mode throughout.
class Net(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen
        self.eval_only = nn.Dropout(0.5).eval()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x * 2)  # run: RC217


def bad():
    return Net(False), [(torch.randn(2, 4),)] * 4


class Throughout(Net):
    def forward(self, x):
        return self.drop(self.norm(self.eval_only(x)))


def good():
    return Throughout(True), [(torch.randn(3, 4),) for _ in range(4)]
