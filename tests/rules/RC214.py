import torch


def before_call(fn, index):
    SETTINGS["beams"] = index + 2


# A module-level configuration object is changed between calls.
SETTINGS = {"beams": 2}


def expand(logits):
    return logits.repeat(SETTINGS["beams"], 1)  # <- RC214


def bad():
    return expand, [(torch.randn(1, 4),)] * 4


# A global counter is incremented by the compiled function itself.
CALLS = 0


def counted(x):
    global CALLS
    CALLS += 1  # <- RC214<2.14
    return x * 2


def bad_2():
    return counted, [(torch.randn(2, 4),)] * 5
