"""Gradients are filled with zeros instead of being dropped."""
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

    def driver(xs):
        for x in xs:
            loss = step(x)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()

    return driver, [(xs,)]


AS_WRITTEN = True
EXPECT = [{"code": "CG302", "kind": "cudagraph_lifetime", "severity": "high", "line": "loss.backward()", "fix": ["set_to_none=True"], "holder": "net.weight.grad"}]
