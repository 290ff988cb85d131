import torch
from torch import nn


# A scripted module inside the compiled model.
class Hybrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = x * 2
        features = self.backbone(x)  # <- GB199
        return self.head(features)


def bad():  # <- NC805
    return Hybrid(), [(torch.randn(2, 4),)] * 3


# The same model as plain modules.
class Hybrid2(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = x * 2
        features = self.backbone(x)
        return self.head(features)


def good():
    return Hybrid2(), [(torch.randn(2, 4),)] * 3


# Transformer layers, multi-head attention.
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


def good_2():
    return Model(), [(torch.randn(2, 5, 4),)] * 3
