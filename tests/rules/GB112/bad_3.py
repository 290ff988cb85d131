"""except* (exception groups) has bytecode that Dynamo does not know."""
import torch


def tolerant(x):
    x = x.relu()
    try:
        if x.dim() == 1:
            raise ExceptionGroup("shape", [ValueError("one dimension")])
    except* ValueError:
        x = x.unsqueeze(0)
    return x * 2


def make():
    return tolerant, [(torch.randn(4),)] * 3


EXPECT = [{"code": "GB112", "kind": "skipped_frame", "line": "except* ValueError:", "severity": "high", "fix": ["except", "outside", "if"]}]
