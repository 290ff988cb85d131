"""A tensor is divided by an argument that is 0.0."""

import torch

EXPECT = [
    {
        "code": "AD105",
        "kind": "hazard",
        "line": "return x / by",
        "fix": ["torch.tensor(by)"],
        "severity": "low",
        "torch": "<2.15",
    }
]


def divided(x, by):
    return x / by


def make():
    return divided, [(torch.ones(3), 0.0)]
