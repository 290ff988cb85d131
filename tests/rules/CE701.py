import torch


# A view that fails is caught in eager.
def patches(x):
    x = x * 2
    try:
        return x.view(-1, 7)  # run: CE701<2.14
    except RuntimeError:
        return x.view(-1, 4)


def bad():
    return patches, [(torch.randn(3, 8),)]


# Indexing past the end, caught as IndexError in eager.
def last_or_first(x, position):
    x = x + 1
    try:
        row = x[position]  # run: CE701
    except IndexError:
        row = x[0]
    return row * 2


def bad_3():
    return last_or_first, [(torch.randn(4, 3), 7)]


# The shape is asked for instead of tried out.
def patches_2(x):
    x = x * 2
    return x.view(-1, 7) if x.numel() % 7 == 0 else x.view(-1, 4)


def good():
    return patches_2, [(torch.randn(3, 8),)] * 2
