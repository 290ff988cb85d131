"""A module-level configuration object is changed between calls."""
import torch

SETTINGS = {"beams": 2}


def expand(logits):
    return logits.repeat(SETTINGS["beams"], 1)


def make():
    return expand, [(torch.randn(1, 4),)] * 4


def before_call(fn, index):
    SETTINGS["beams"] = index + 2


EXPECT = [{"code": "RC214", "kind": "recompile", "line": "SETTINGS[\"beams\"], 1)", "fix": ["global", "argument", "tensor"]}]
