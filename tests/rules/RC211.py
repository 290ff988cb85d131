import torch
import torch.nn.functional as F

X, MASK = torch.randn(2, 4, 8), torch.zeros(2, 4, 4)


# The mask is None on some calls and a tensor on others.
def attend(x, mask=None):
    if mask is not None:  # run: RC211
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    return F.scaled_dot_product_attention(x, x, x)


def bad():
    return attend, [{"x": X, "mask": mask} for mask in (None, MASK, None, MASK)]


# The mask is always a tensor.
def good():
    return attend, [{"x": X, "mask": mask} for mask in (torch.zeros(2, 4, 4), MASK)]
