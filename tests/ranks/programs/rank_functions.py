"""What seeded.py compiles with Inductor, and a test before it to fill a cache."""

import torch


@torch.compile
def product(x):
    """One product is a call of a library: nothing is built for it."""
    return x @ x
