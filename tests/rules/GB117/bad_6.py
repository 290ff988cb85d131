"""bytes() and memoryview are builtins without a tracing rule."""
import torch


def header(x, fields):
    x = x * 2
    raw = bytes(fields)
    return x + raw[0]


def make():
    return header, [(torch.randn(4), [3, 4])] * 2


EXPECT = [{"code": "GB117", "kind": "graph_break", "line": "bytes(fields)", "fix": ["outside", "builtin", "argument", "list"], "torch": "<2.14"}]
