"""A plain attribute of a tokenizer or config object in `forward` costs nothing.

It is read while tracing and guarded. What still cuts the graph is an attribute whose
lookup runs code that cannot be traced.

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
