"""Fused bfloat16 arithmetic rounds less often than eager: nothing is wrong."""
import torch

SLOW = True


def make():
    def act(x):
        return (x * 3.1 + 1.7).sin() * x - x.cos()

    return act, [(torch.randn(4096, dtype=torch.bfloat16),)]


EXPECT = []
