"""Transformer layers, multi-head attention, weight norm and convolution from torch.nn are all traced."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3, padding=1))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = self.encoder(x)
        return self.attention(x, x, x, need_weights=False)[0]


def make():
    return Model(), [(torch.randn(2, 5, 4),)] * 3


EXPECT = []
