"""Where a test says that a value is a tensor, asking for its truth splits the graph."""
import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    mode = "size"

    def forward(self, x, scale):
        if not isinstance(scale, Tensor):
            return x * scale
        if scale > 1:  # <- GB102
            x = x + 1
        return self.sized(x)

    def sized(self, x):
        match self.mode:
            case "size":
                count = x.sum()
            case _:
                return x
        if count > 1:  # <- GB102
            x = x * 2
        return x


def make():
    return Scaled(), [(torch.randn(4, 2), torch.tensor(2.0))]
