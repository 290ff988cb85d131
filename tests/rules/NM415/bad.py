"""A filter leaves out the guard on a global that changes."""
import torch

GAIN = 1.0


def make():
    def f(x):
        return x * GAIN

    keep = {"guard_filter_fn": lambda guards: [not guard.is_global for guard in guards]}
    return torch.compile(f, backend="eager", options=keep), [(torch.ones(3),)] * 2


def before_call(fn, index):
    global GAIN
    GAIN = 1.0 + index


EXPECT = [{"code": "NM415", "kind": "stale_state", "severity": "high", "line": "torch.compile(f", "fix": ["guard_filter_fn"]}]
