"""The same function is used on two devices (here the meta device, for a dry run of the shapes)."""
import torch


def attend(q, k):
    return torch.softmax(q @ k.t(), -1)


def make():
    return attend, [(torch.randn(4, 8), torch.randn(4, 8)), (torch.randn(4, 8, device="meta"), torch.randn(4, 8, device="meta"))]


EXPECT = [{"code": "RC206", "kind": "recompile", "line": "def attend(q, k):", "fix": ["device"]}]
