"""LSTMCell in a loop over time is plain tensor code."""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.cell = nn.LSTMCell(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids):
        hidden = self.embed(ids)
        state = None
        outputs = []
        for step in hidden.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0])
        return self.head(torch.stack(outputs, 1))


def make():
    return Tagger(), [(torch.randint(0, 20, (2, 5)),) for _ in range(3)]


EXPECT = []
