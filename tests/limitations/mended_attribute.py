"""Reading a plain attribute of a tokenizer or config object in `forward` costs nothing.

torch reads it while tracing and guards it. An attribute whose lookup runs code that
cannot be traced still breaks the graph.

Group: mended
"""

import torch
from torch import nn


class Tokenizer:
    def __init__(self):
        self.special = {"<image>": 7}

    @property
    def image_token(self):
        return self.special["<image>"]


class Net(nn.Module):
    tokenizer = Tokenizer()

    def forward(self, tokens):
        return tokens == self.tokenizer.image_token


fast = torch.compile(Net(), backend="eager", fullgraph=True)
assert fast(torch.tensor([6, 7])).tolist() == [False, True]
