import torch


def before_call(fn, index):
    SETTINGS["beams"] = index + 2


# A module-level configuration object is changed between calls.
SETTINGS = {"beams": 2}


def expand(logits):
    return logits.repeat(SETTINGS["beams"], 1)  # <- RC214


def bad():
    return expand, [(torch.randn(1, 4),)] * 4
