"""nn.GRU as a single step of a decoder."""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 4, num_layers=2)
        self.out = nn.Linear(4, 4)

    def forward(self, token, state):
        token = token.tanh()
        y, state = self.gru(token, state)
        return self.out(y), state


def make():
    return Decoder(), [(torch.randn(1, 2, 4), torch.zeros(2, 2, 4)) for _ in range(3)]


EXPECT = [
    {"code": "GB108", "kind": "skipped_frame", "line": "self.gru(token, state)", "severity": "high", "fix": ["allow_rnn", "GRUCell", "Cell", "RNN"], "torch": "<2.14"},
    {"code": "GB108", "kind": "graph_break", "line": "self.gru(token, state)", "fix": ["allow_rnn", "GRUCell", "Cell", "RNN"], "torch": ">=2.15"},
]
