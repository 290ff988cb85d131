"""Where a test says that a value is no tensor, asking for its truth is no break."""
import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    mode = "size"

    def forward(self, x, scale, shift=None):
        if isinstance(scale, Tensor):
            scale = scale.to(x.dtype)
        elif scale > 1:
            x = x + 1
        limit = shift.view(-1) if torch.is_tensor(shift) else float(shift or 0)
        if not isinstance(scale, (Tensor, list)) and scale > 2:
            x = x - limit
        return self.sized(x)

    def sized(self, x):
        count = x.sum()
        match self.mode:
            case "size":
                count = x.shape[0]
            case str() as other:
                count = len(other)
            case _:
                return x
        if count > 1:
            x = x * count
        return x


def make():
    return Scaled(), [(torch.randn(4, 2), 3.0)]
