"""A nested region runs three times in a chain, and a backward follows."""

import torch
from torch import nn

EXPECT = [
    {
        "code": "AD103",
        "kind": "hazard",
        "line": "x = norm(x @ self.weight",
        "fix": ["nested_compile_region"],
        "severity": "medium",
    }
]
AS_WRITTEN = True


@torch.compiler.nested_compile_region
def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        for _ in range(3):
            x = norm(x @ self.weight, self.weight[0]).sin()
        return x.sum()


def make():
    compiled = torch.compile(Chain())

    def step(x):
        compiled(x).backward()

    return step, [(torch.randn(8, 8),)]
