import torch
from torch import nn


# A tagger around nn.LSTM.
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)

    def forward(self, x):
        output, _ = self.lstm(x.tanh())  # <- GB108
        return output * 2


def bad():  # <- NC805
    return Tagger(), [(torch.randn(2, 5, 8),) for _ in range(3)]
