"""A deprecation warning raised on every call."""
import warnings

import torch


def scale(x, factor=None):
    x = x.sigmoid()
    if factor is None:
        warnings.warn("factor will be required", stacklevel=2)
        factor = 2.0
    return x * factor


def make():
    return scale, [(torch.randn(4),)] * 3


EXPECT = [{"code": "GB104", "kind": "graph_break", "line": "warnings.warn(", "fix": ["is_compiling", "remove", "ignore_logging_functions", "outside", "reorderable_logging_functions", "once"]}]
