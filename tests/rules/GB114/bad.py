"""An operator registered for CPU only: it has no fake kernel, so it cannot be in a graph."""
import torch
from torch import nn

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
        h = torch.ops.rules_gb114.fast_gelu(h)
        return self.down(h)


def make():
    return FeedForward(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB114", "kind": "graph_break", "line": "torch.ops.rules_gb114.fast_gelu(h)", "fix": ["register_fake", "fake kernel", "meta"]}]
