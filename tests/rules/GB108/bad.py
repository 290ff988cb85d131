"""A tagger around nn.LSTM: Dynamo does not trace cuDNN-style RNN modules."""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, ids):
        hidden = self.embed(ids)
        output, _ = self.lstm(hidden)
        return self.head(output)


def make():
    return Tagger(), [(torch.randint(0, 20, (2, 5)),) for _ in range(3)]


EXPECT = [
    {"code": "GB108", "kind": "skipped_frame", "line": "self.lstm(hidden)", "severity": "high", "fix": ["allow_rnn", "LSTMCell", "Cell", "RNN"], "torch": "<2.14"},
    {"code": "GB108", "kind": "graph_break", "line": "self.lstm(hidden)", "fix": ["allow_rnn", "LSTMCell", "Cell", "RNN"], "torch": ">=2.15"},
]
