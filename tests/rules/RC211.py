import torch
import torch.nn.functional as F
from torch import nn


# The mask is None on some calls and a tensor on others.
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if mask is not None:  # <- RC211
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return F.scaled_dot_product_attention(q, k, v)


def bad():
    x = torch.randn(2, 4, 8)
    mask = torch.zeros(2, 4, 4)
    return Attention(), [{"x": x, "mask": None}, {"x": x, "mask": mask}, {"x": x, "mask": None}, {"x": x, "mask": mask}]


# A scale that is a tensor on some calls and a float on others.
def scaled(x, scale):  # <- RC211
    return x * scale


def bad_2():
    return scaled, [(torch.randn(4), torch.tensor(3.0)), (torch.randn(4), 2.0), (torch.randn(4), torch.tensor(4.0))]


# The mask is always a tensor.
def good():
    x = torch.randn(2, 4, 8)
    mask = torch.zeros(2, 4, 4)
    return Attention(), [{"x": x, "mask": torch.zeros(2, 4, 4)}, {"x": x, "mask": mask}, {"x": x, "mask": mask}]
