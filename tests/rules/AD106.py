import torch


# A float that varies is the value of addcdiv, and is used elsewhere too.
def step(x, count):
    x = x.addcdiv(x, x + 1, value=-(0.1 / (1 - 0.9**count)))  # run: AD106>=2.13,<2.15, RC210
    return x + x / (1 - 0.999**count) ** 0.5


def bad():
    return step, [(torch.ones(3), count) for count in (1.0, 2.0, 3.0, 4.0)]


# The float that varies is a tensor.
def step2(x, count):
    x = x - 0.1 / (1 - 0.9**count) * x / (x + 1)
    return x + x / (1 - 0.999**count) ** 0.5


def good():
    counts = (1.0, 2.0, 3.0, 4.0)
    return step2, [(torch.ones(3), torch.tensor(count)) for count in counts]
