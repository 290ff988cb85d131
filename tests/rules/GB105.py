import numpy as np
import torch


# A numpy function that torch does not know runs as plain Python.
def tone_curve(image, curve):
    image = image.clamp(0, 1)
    mapped = np.interp(image.numpy(), [0.0, 0.5, 1.0], curve)  # <- GB105
    return torch.from_numpy(mapped).float().sqrt()


def bad():
    return tone_curve, [(torch.rand(4, 4), [0.0, 0.7, 1.0])] * 2


# A break among the arguments of a tensor's method.
def replace(x, seen, mask):
    y = x * 2
    y[mask] = seen.view_as(y[mask])  # <- GB103, GB105
    return y + 1


def bad_8():
    mask = torch.tensor([True, False, True, False])
    return replace, [(torch.randn(4, 8), torch.randn(16), mask) for _ in range(3)]
