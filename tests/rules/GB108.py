import torch
from torch import nn


# A tagger around nn.LSTM.
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, ids):
        hidden = self.embed(ids)
        output, _ = self.lstm(hidden)  # <- GB108
        return self.head(output)


def bad():  # <- NC805
    return Tagger(), [(torch.randint(0, 20, (2, 5)),) for _ in range(3)]


# LSTMCell in a loop over time is plain tensor code.
class Tagger2(nn.Module):
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


def good():
    return Tagger2(), [(torch.randint(0, 20, (2, 5)),) for _ in range(3)]
