"""format_exc() in an error path that runs every time."""
import traceback

import torch

LIMITS = {}


def lenient(x, name):
    x = x * 2
    try:
        limit = LIMITS[name]
    except KeyError:
        detail = traceback.format_exc()
        limit = 1.0
    return x.clamp(max=limit)


def make():
    return lenient, [(torch.randn(4), "missing")] * 3


EXPECT = [{"code": "GB112", "kind": "skipped_frame", "line": "traceback.format_exc()", "severity": "high", "fix": ["outside", "remove", "traceback", "exception"]}]
