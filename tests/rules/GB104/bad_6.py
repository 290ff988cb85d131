"""A print inside try/finally: no resumption inside a try block, so everything runs eagerly."""
import torch


def guarded(x, log):
    x = x.sin()
    try:
        print("step")
        x = x * 2
    finally:
        log["calls"] = 1
    return x.cos()


def make():
    return guarded, [(torch.randn(4), {"calls": 0})] * 3


EXPECT = [{"code": "GB104", "kind": "skipped_frame", "line": "print(", "severity": "high", "fix": ["try", "is_compiling", "remove", "outside"]}]
