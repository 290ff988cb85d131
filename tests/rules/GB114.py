import torch
from torch import nn


# An operator registered for CPU only.
if not hasattr(torch.ops.rules_gb114, "fast_gelu"):
    library = torch.library.Library("rules_gb114", "DEF")
    library.define("fast_gelu(Tensor x) -> Tensor")
    library.impl("fast_gelu", lambda x: x * torch.sigmoid(1.702 * x), "CPU")


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        h = self.up(x)
        h = torch.ops.rules_gb114.fast_gelu(h)  # <- GB114
        return self.down(h)


def bad():
    return FeedForward(), [(torch.randn(2, 4),)] * 3


# The same operator with a fake kernel.
if not hasattr(torch.ops.rules_gb114_good, "fast_gelu"):
    with_fake = torch.library.Library("rules_gb114_good", "DEF")
    with_fake.define("fast_gelu(Tensor x) -> Tensor")
    with_fake.impl("fast_gelu", lambda x: x * torch.sigmoid(1.702 * x), "CPU")
    torch.library.register_fake("rules_gb114_good::fast_gelu", lambda x: torch.empty_like(x), lib=with_fake)


class FeedForward2(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        h = self.up(x)
        h = torch.ops.rules_gb114_good.fast_gelu(h)
        return self.down(h)


def good():
    return FeedForward2(), [(torch.randn(2, 4),)] * 3
