"""Images come as a list."""

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, images: list[Tensor]) -> Tensor:
        mixed = self.fc(torch.stack(images)).sum(0)  # <- RC212
        return mixed + sum(image.mean() for image in images)


def make():
    return Encoder(), [([torch.rand(4) for _ in range(n)],) for n in (2, 3, 4)]
