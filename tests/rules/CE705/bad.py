"""The C++ compiler that Inductor is told to use does not exist."""
import torch
import torch._inductor.config
from torch import nn

torch._inductor.config.cpp.cxx = ("/no/such/compiler",)


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2, -1)


def make():
    return Model(), [(torch.randn(2, 4),)] * 2


EXPECT = [{"code": "CE705", "kind": "compile_error", "line": "def forward", "severity": "high", "fix": ["install g++"]}]
