import torch


# A filter leaves out the guard on a global that changes.
GAIN = 1.0


def bad():
    def f(x):
        return x * GAIN

    keep = {"guard_filter_fn": lambda guards: [not guard.is_global for guard in guards]}
    return torch.compile(f, backend="eager", options=keep), [(torch.ones(3),)] * 2  # <- NM415


def before_call(fn, index):
    global GAIN
    GAIN = 1.0 + index
