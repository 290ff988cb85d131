"""Images come in both memory formats."""
import torch
from torch import nn


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        return self.conv(image).relu()


def make():
    images = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    images[1] = images[1].to(memory_format=torch.channels_last)
    images[3] = images[3].to(memory_format=torch.channels_last)
    return Stem(), [(image,) for image in images]


EXPECT = [{"code": "RC204", "kind": "recompile", "line": "def forward(self, image):", "fix": ["contiguous", "memory_format", "channels_last", "stride"]}]
