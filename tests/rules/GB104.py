import sys
import torch


# A home-made progress bar that writes to the terminal inside the layer loop.
def stack(x):
    for _ in range(3):
        x = x.tanh()
        sys.stdout.write("#")  # <- GB104
    return x


def bad_4():  # <- NC805
    return stack, [(torch.randn(2, 4),)] * 3
