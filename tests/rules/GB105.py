import hashlib
import json
import numpy as np
import zlib
import torch
from torch import nn


# A numpy function that torch does not know runs as plain Python.
def tone_curve(image, curve):
    image = image.clamp(0, 1)
    mapped = np.interp(image.numpy(), [0.0, 0.5, 1.0], curve)  # <- GB105
    return torch.from_numpy(mapped).float().sqrt()


def bad():
    return tone_curve, [(torch.rand(4, 4), [0.0, 0.7, 1.0])] * 2


# A break among the arguments of a tensor's method.
def replace(x, seen, mask):
    y = x * 2
    y[mask] = seen.view_as(y[mask])  # run: GB103, GB105
    return y + 1


def bad_2():
    mask = torch.tensor([True, False, True, False])
    return replace, [(torch.randn(4, 8), torch.randn(16), mask) for _ in range(3)]


# C functions, and a tokenizer that is asked in each call.
class Tokenizer:
    encode = staticmethod(zlib.adler32)


class Net(nn.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, x):
        x = x + zlib.crc32(b"a") % 2  # <- GB105
        digest = hashlib.sha256(b"a")  # <- GB105
        x = x * 2
        text = json.dumps({"a": 1})  # <- GB105
        x = x * 2
        token = self.tokenizer.encode(b"<image>")  # <- GB105
        return x + token % 3, digest, text


def bad_3():
    return Net(Tokenizer()), [(torch.rand(4),)] * 2
