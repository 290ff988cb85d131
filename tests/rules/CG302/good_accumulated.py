"""Gradients are accumulated in memory of their own."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def training(count=4):
    net = torch.nn.Linear(8, 1, device=DEVICE)
    step = torch.compile(lambda x: net(x).pow(2).mean(), mode="reduce-overhead")
    return net, step, [torch.randn(4, 8, device=DEVICE) for _ in range(count)]


def make():
    net, step, xs = training()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def driver(xs):
        for i, x in enumerate(xs):
            (step(x) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

    return driver, [(xs,)]


AS_WRITTEN = True
EXPECT = []
