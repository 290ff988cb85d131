"""int() of a tensor of lengths, used to trim padding before attention."""
import torch
import torch.nn.functional as F


def trimmed_attention(q, k, v, lengths):
    scale = q.shape[-1] ** -0.5
    q = q * scale
    longest = int(lengths.max())
    return F.scaled_dot_product_attention(q[:, :longest], k[:, :longest], v[:, :longest])


def make():
    q, k, v = (torch.randn(2, 8, 4) for _ in range(3))
    return trimmed_attention, [(q, k, v, torch.tensor([5, 6]))]


EXPECT = [{"code": "GB101", "kind": "graph_break", "line": "int(lengths.max())", "fix": ["mask", "tensor", "outside", "capture_scalar_outputs", "int("]}]
