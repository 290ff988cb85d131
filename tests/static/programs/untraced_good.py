"""The id is looked up once; Python is traced."""

import math
import zlib

import torch
from torch import nn


class Tokenizer:
    def encode(self, text):
        return [zlib.crc32(text.encode()) % 3]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokenizer = Tokenizer()
        self.image_token = self.tokenizer.encode("<image>")[0]

    def forward(self, x):
        words = {"a": 1, "b": 2}
        scale = sum(words.values()) + math.gcd(4, 6) + len("a b".split())
        return x * scale + self.image_token


def make():
    return Net(), [(torch.rand(4),)] * 2
