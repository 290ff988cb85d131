"""Losses are kept as tensors over training steps and averaged at the end."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


def make():
    net = torch.nn.Linear(8, 1, device=DEVICE)
    step = torch.compile(lambda x: net(x).pow(2).mean(), mode="reduce-overhead")

    def driver(xs):
        losses = []
        for x in xs:
            net.zero_grad(set_to_none=True)
            loss = step(x)
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    return driver, [(inputs(9),)]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "losses.append(loss.detach())", "fix": ["clone"], "holder": "losses[0]"}]
