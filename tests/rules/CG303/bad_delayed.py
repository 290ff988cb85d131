"""One of two losses has its backward only after the next forward."""
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
        first, second = step(xs[0]), step(xs[1])
        second.backward()
        net.zero_grad(set_to_none=True)
        third = step(xs[2])
        first.backward()
        net.zero_grad(set_to_none=True)
        third.backward()
        net.zero_grad(set_to_none=True)

    return driver, [(xs,)]


AS_WRITTEN = True
EXPECT = [{"code": "CG303", "kind": "cudagraph_lifetime", "severity": "high", "line": "third = step(xs[2])", "fix": ["before the next step", "again"]}]
