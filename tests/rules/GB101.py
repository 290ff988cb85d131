import math
import torch


# Values of tensors are read into Python.
def read(x):
    total = x.sum().item()  # <- GB101
    rows = x.tolist()  # <- GB101
    return x * total + len(rows)


def cast(x):
    whole = int(x.argmax())  # <- GB101
    root = math.sqrt(x.abs().sum())  # <- GB101
    return x * whole + root


def looped(x):
    count = x.abs().sum().long()
    for _ in range(count):  # read: GB101 # run: GB117
        x = x * 0.5
    return x


def indexed(x):
    choice = x.argmax()
    scales = [1.0, 2.0, 3.0, 4.0]
    return x * scales[choice]  # <- GB101


def sliced(x):
    count = (x.abs() < 9).sum()
    return x[:count]  # <- GB101


def sized(x):
    count = (x.abs() < 9).sum()
    return x + torch.arange(count)  # <- GB101


def every(x):
    return read(x) + cast(x) + looped(x) + indexed(x) + sliced(x) + sized(x)


def bad():
    return every, [(torch.tensor([0.5, 1.0, 1.5, 0.2]),)] * 2
