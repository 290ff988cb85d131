import torch


# Deterministic algorithms are switched on for some calls.
def accumulate(x, index):  # <- RC216
    return torch.zeros(4).index_add(0, index, x)


def before_call(fn, index):
    torch.use_deterministic_algorithms(index == 1)


def bad_3():
    return accumulate, [(torch.randn(3), torch.tensor([0, 1, 1]))] * 3
