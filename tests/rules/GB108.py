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
