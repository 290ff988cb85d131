import torch
from torch import nn


# Images come in both memory formats.
def stem(image):  # run: RC204
    return image.relu()


def bad():
    formats = [torch.contiguous_format, torch.channels_last] * 2
    return stem, [(torch.randn(2, 3, 8, 8).to(memory_format=each),) for each in formats]


# The caller brings every image into one memory format first.
def good():
    images = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    return stem, [(image.to(memory_format=torch.channels_last),) for image in images]


# Positions are expanded over the batch and cross a graph break.
class Rotary(nn.Module):
    def forward(self, positions):  # run: RC201, RC204
        if positions.max() > 100:  # <- GB102
            positions = positions - 1
        return positions.float().cos()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary()

    def forward(self, x):  # run: RC201
        batch, length = x.shape  # run: RC202
        positions = torch.arange(length).expand(batch, -1)  # read: RC204
        twice = torch.arange(length).expand(2 * batch, -1)
        return x * self.rotary(positions) + self.rotary(twice).mean()  # run: RC201, RC202


def bad_2():
    return Model(), [(torch.rand(batch, 4),) for batch in (2, 3, 1)]


# Positions without a batch broadcast; expanded inside of one graph they are fine.
class Rotary2(nn.Module):
    def forward(self, positions):
        return positions.float().cos()


class Model2(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary2()

    def forward(self, x):  # run: RC201
        batch, length = x.shape
        positions = torch.arange(length).expand(batch, -1)
        return x * self.rotary(positions) + torch.arange(length)


def good_2():
    return Model2(), [(torch.rand(batch, 4),) for batch in (2, 3, 4)]
