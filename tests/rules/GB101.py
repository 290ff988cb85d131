import math
import torch
import torch.nn.functional as F


# A loss is read for the log, and two breaks of other kinds are in the same step.
def step(logits, labels):
    valid = logits[labels >= 0]  # <- GB103
    print("valid rows", valid.shape[0])  # <- GB104
    loss = F.cross_entropy(valid, labels.clamp(min=0)[: valid.shape[0]])
    logs = {"loss": loss.item()}  # <- GB101
    return loss * 2, logs


def bad():
    return step, [(torch.randn(4, 6), torch.tensor([0, -1, 2, 3]))] * 3


# Ragged split.
def ragged_pool(packed, sizes):
    packed = packed.tanh()
    counts = sizes.tolist()  # <- GB101
    return torch.stack([part.mean(0) for part in torch.split(packed, counts)])


def bad_3():
    return ragged_pool, [(torch.randn(9, 6), torch.tensor([2, 3, 4]))] * 2


# A value read inside a Python loop.
def power_iteration(matrix, vector):
    norms = []
    for _ in range(4):
        vector = matrix @ vector
        norms.append(float(vector.norm()))  # <- GB101
    return vector, norms


def bad_4():  # <- NC805
    return power_iteration, [(torch.eye(5), torch.ones(5))] * 3


# math.* functions want a Python number, so the tensor is read on the host.
def scale(x):
    amax = x.abs().amax()
    exponent = math.ceil(amax)  # <- GB101
    return x.clamp(-1, 1), exponent


def bad_5():
    return scale, [(torch.rand(4, 4),)] * 2


# A router picks an entry of a Python list with a tensor index.
def route(x):
    choice = x.argmax() * 0
    temperature = [0.5, 1.0, 2.0][choice]  # <- GB101
    return x / temperature


def bad_6():
    return route, [(torch.randn(4),)] * 2
