"""torch.device as a context manager: Dynamo cannot enter it."""
import torch


def positions(x):
    x = x * 2
    with torch.device("cpu"):
        steps = torch.arange(4)
    return x + steps


def make():
    return positions, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB111", "kind": "skipped_frame", "line": "with torch.device(", "severity": "high", "fix": ["outside", "device=", "context manager"]}]
