import torch


# set_default_device in mid-flight changes the function mode stack, which is guarded.
def scale(x):  # <- RC216
    return x * 2


def before_call(fn, index):
    torch.set_default_device("cpu" if index == 1 else None)


def bad_5():
    return scale, [(torch.randn(4),)] * 3
