"""The same convolution with Inductor's default, and sizes of one."""
import torch


def make():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(8, 16, 3)

    def f(x):
        return convolution(x)

    return f, [(torch.randn(1, 8, 16, 3),)]


EXPECT = []
