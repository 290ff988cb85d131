"""fullgraph=True over an LSTM."""
import torch
from torch import nn

COMPILE = {"fullgraph": True}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4)

    def forward(self, x):
        x = x.tanh()
        return self.rnn(x)[0]


def make():
    return Tagger(), [(torch.randn(3, 2, 4),)]


EXPECT = [{"code": "CE704", "kind": "compile_error", "line": "self.rnn(x)[0]", "severity": "high", "fix": ["allow_rnn", "Cell", "fullgraph", "RNN", "LSTM"]}]
