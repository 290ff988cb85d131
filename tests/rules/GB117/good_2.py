"""An f-string of a tensor that is only returned costs nothing; dataclass, named tuple and dict outputs are fine."""
import collections
import dataclasses

import torch
from torch import nn

Pair = collections.namedtuple("Pair", "loss logits")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    weight: float = 1.0
    name: str = "train"


class Reporter(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, batch):
        logits = self.fc(batch.x)
        loss = logits.mean() * batch.weight
        text = f"{batch.name} loss {loss:.3f}"
        return {"pair": Pair(loss, logits), "text": text, "copy": Batch(logits, batch.weight)}


def make():
    return Reporter(), [(Batch(torch.randn(2, 4)),) for _ in range(3)]


EXPECT = []
