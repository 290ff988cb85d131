import torch
import torch.nn.functional as F

X, MASK = torch.randn(2, 4, 8), torch.zeros(2, 4, 4)


# The mask is None on some calls and a tensor on others.
def attend(x, mask=None):
    if mask is not None:  # <- RC211
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    return F.scaled_dot_product_attention(x, x, x)


def bad():
    return attend, [{"x": X, "mask": mask} for mask in (None, MASK, None, MASK)]


# A scale that is a tensor on some calls and a float on others.
def scaled(x, scale):  # <- RC211
    return x * scale


def bad_2():
    return scaled, [(torch.randn(4), scale) for scale in (torch.tensor(3.0), 2.0, torch.tensor(4.0))]


# The mask is always a tensor.
def good():
    return attend, [{"x": X, "mask": mask} for mask in (torch.zeros(2, 4, 4), MASK)]
