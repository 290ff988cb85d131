"""A step is marked between a forward and its backward."""
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
        for x in xs:
            net.zero_grad(set_to_none=True)
            loss = step(x)
            torch.compiler.cudagraph_mark_step_begin()
            loss.backward()

    return driver, [(xs,)]


AS_WRITTEN = True
EXPECT = [{"code": "CG303", "kind": "cudagraph_lifetime", "severity": "high", "line": "torch.compiler.cudagraph_mark_step_begin()", "fix": ["before the next step", "again"]}]
