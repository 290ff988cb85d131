"""Two losses have their backwards before the next forward."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def training(count=4):
    net = torch.nn.Linear(8, 1, device=DEVICE)
    step = torch.compile(lambda x: net(x).pow(2).mean(), mode="reduce-overhead")
    return net, step, [torch.randn(4, 8, device=DEVICE) for _ in range(count)]


def make():
    net, step, xs = training()

    def driver(xs):
        for a, b in zip(xs[::2], xs[1::2], strict=True):
            first, second = step(a), step(b)
            (first + second).backward()
            net.zero_grad(set_to_none=True)

    return driver, [(xs,)]


AS_WRITTEN = True
EXPECT = []
