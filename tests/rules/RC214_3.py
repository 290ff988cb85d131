import torch


# A global mode string.
MODE = "train"


def regularise(x):
    if MODE == "train":  # <- RC214
        return x + torch.randn_like(x) * 0.1
    return x * 1.0


def before_call(fn, index):
    global MODE
    MODE = "train" if index % 2 == 0 else "eval"


def bad_3():
    return regularise, [(torch.randn(4),)] * 4
