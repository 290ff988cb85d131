"""A range given with mark_dynamic does not fit the code, which needs at least five."""
import torch
import torch._dynamo


def chunked(x):
    if x.shape[0] > 4:
        return x[:4].sum(0) + x[4:].sum(0)
    return x.sum(0)


def make():
    x = torch.randn(8, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
    return chunked, [(x,)]


EXPECT = [{"code": "DS601", "kind": "specialization", "line": "if x.shape[0] > 4:", "fix": ["range", "min", "maybe_mark_dynamic", "mark_dynamic"]}]
