import torch


# Inputs require grad in adversarial steps only.
def attacked(image):  # run: RC208
    return (image * 2).sum()


def bad():
    return attacked, [(torch.randn(3, 4, requires_grad=each),) for each in (False, True, False)]


# requires_grad is the same on every call.
def good():
    return attacked, [(torch.randn(3, 4, requires_grad=True),) for _ in range(3)]
