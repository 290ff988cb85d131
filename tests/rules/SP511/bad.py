"""A recurrence over 64 time steps is unrolled into one graph."""
import torch

COMPILE = {"backend": "eager"}


def make():
    w = torch.randn(16, 16) * 0.1

    def rnn(x):
        h = torch.zeros(16)
        for t in range(x.shape[0]):
            a = x[t] + w @ h
            h = torch.tanh(a)
        return h

    return rnn, [(torch.randn(64, 16),)] * 3


EXPECT = [{"code": "SP511", "kind": "compile_time", "line": "for t in range(x.shape[0])", "fix": ["scan", "vectorise", "loop outside"]}]
