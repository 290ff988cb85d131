import torch


def before_call(fn, index):
    SETTINGS["beams"] = index + 2


# A module-level configuration object is changed between calls.
SETTINGS = {"beams": 2}


def expand(logits):
    return logits.repeat(SETTINGS["beams"], 1)  # run: RC214


def bad():
    return expand, [(torch.randn(1, 4),)] * 4


# A counter of the file.
CALLS = 0


def every(x):
    global CALLS
    CALLS += 1  # read: RC214 # run: RC214<2.14
    return x + 1


def bad_2():
    return every, [(torch.rand(4),)] * 4
