import torch
from torch import Tensor, nn


# A dictionary whose keys change from batch to batch.
def multi_task(batch):
    return {name: x * 2 for name, x in batch.items()}  # run: RC212


def bad():
    return multi_task, [({name: torch.randn(2, 4) for name in names},) for names in ("ab", "ac", "bc")]


# Images come as a list.
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, images: list[Tensor]) -> Tensor:
        mixed = self.fc(torch.stack(images)).sum(0)  # <- RC212
        return mixed + sum(image.mean() for image in images)


def bad_2():
    return Encoder(), [([torch.rand(4) for _ in range(n)],) for n in (2, 3, 4)]


# Outputs are collected on the module.
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.outputs = []

    def forward(self, x):
        y = self.fc(x)
        self.outputs.append(y.detach())  # <- RC212
        return y


def bad_3():
    return Probe(), [(torch.rand(2, 4),)] * 4


# A list of the file that grows.
SEEN = []


def every(x):
    SEEN.append(1)  # <- RC212
    return x + 1


def bad_4():
    return every, [(torch.rand(4),)] * 4
