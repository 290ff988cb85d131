import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# A nested region runs three times in a chain, and a backward follows.
@torch.compiler.nested_compile_region
def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        for _ in range(3):
            x = norm(x @ self.weight, self.weight[0]).sin()  # <- AD103
        return x.sum()


def bad():
    compiled = torch.compile(Chain())

    def step(x):
        compiled(x).backward()

    return step, [(torch.randn(8, 8),)]


# A nested region runs three times in a chain, without gradients.
def good():
    compiled = torch.compile(Chain())

    def step(x):
        with torch.no_grad():
            return compiled(x)

    return step, [(torch.randn(8, 8),)]


# A nested region runs only once, with gradients.
class Chain2(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        x = norm(x @ self.weight, self.weight[0]).sin()
        return x.sum()


def good_2():
    compiled = torch.compile(Chain2())

    def step(x):
        compiled(x).backward()

    return step, [(torch.randn(8, 8),)]
