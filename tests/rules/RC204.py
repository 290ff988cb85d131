import torch
from torch import nn


# Images come in both memory formats.
class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):  # <- RC204
        return self.conv(image).relu()


def bad():
    images = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    images[1] = images[1].to(memory_format=torch.channels_last)
    images[3] = images[3].to(memory_format=torch.channels_last)
    return Stem(), [(image,) for image in images]


# A transposed view on some calls, and a slice of a larger buffer on another.
def energy(field):  # <- RC204
    return (field * field).sum(-1).sqrt()


def bad_2():
    big = torch.randn(4, 16)
    return energy, [(torch.randn(4, 8),), (torch.randn(8, 4).t(),), (big[:, 3:11],)]


# The caller brings every image into one memory format first.
def good():
    images = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    return Stem(), [(image.to(memory_format=torch.channels_last),) for image in images]
