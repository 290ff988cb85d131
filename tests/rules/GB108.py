import torch
from torch import nn


# A recurrent module between others.
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        hidden, _ = self.lstm(self.norm(x))  # <- GB108
        return hidden.relu()


def bad():  # run: NC805
    return Tagger(), [(torch.rand(2, 3, 4),)] * 2
