"""A float that varies is the value of addcdiv, and is used elsewhere too."""

import torch

EXPECT = [
    {
        "code": "AD106",
        "kind": "hazard",
        "line": "x = x.addcdiv(",
        "fix": ["torch.tensor"],
        "severity": "medium",
        "torch": ">=2.13,<2.15",
    }
]


def step(x, count):
    x = x.addcdiv(x, x + 1, value=-(0.1 / (1 - 0.9**count)))
    return x + x / (1 - 0.999**count) ** 0.5


def make():
    return step, [(torch.ones(3), count) for count in (1.0, 2.0, 3.0, 4.0)]
