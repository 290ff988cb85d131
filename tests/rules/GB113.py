import torch


# A class is defined inside the function (a result type made on the spot).
def encode(x):
    hidden = x.tanh()

    class Output:  # run: GB113
        name = "encoded"

    return hidden * 2, Output.name


def bad():
    return encode, [(torch.randn(3, 4),)]


# The caller hands over a generator.
def accumulate(x, weights):
    x = x.relu()
    first = next(weights)  # run: GB113
    return x * first


def bad_2():
    return accumulate, [(torch.randn(4), (w for w in [0.5, 0.25]))]


# A for loop over an iterator that was made outside skips the whole function.
def mix(x, tensors):
    x = x.tanh()
    for other in tensors:  # run: GB113
        x = x + other
    return x


def bad_3():  # run: NC805
    others = [torch.randn(4), torch.randn(4)]
    return mix, [(torch.randn(2, 4), map(torch.relu, others))]


# Generators made and used up inside the function are traced.
def windows(x, size):
    for start in range(0, x.shape[-1], size):
        yield x[..., start:start + size]


def mix_windows(x):
    for index, scale in enumerate([0.5, 2.0]):
        x = x * scale + index
    means = [part.mean() for part in windows(x, 2)]
    return sum(value * 2 for value in means) + x.max()


def good():
    return mix_windows, [(torch.randn(2, 4),)] * 3
