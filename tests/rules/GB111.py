import contextlib
import threading
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


# A lock taken in a shared function.
LOCK = threading.Lock()


def shared(x):
    x = x.tanh()
    with LOCK:  # run: GB111
        x = x * 2
    return x


def bad():  # run: NC805
    return shared, [(torch.randn(2, 4),)] * 3


# Context managers Dynamo knows, and a user's own without a break inside.
@contextlib.contextmanager
def section(name):
    yield name


def known(x):
    with section("first"):
        x = x.relu()
    with torch.no_grad(), contextlib.nullcontext():
        bias = x.mean()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x @ x.t()
    q = x.float().view(1, 1, 2, 2)
    with sdpa_kernel(SDPBackend.MATH):
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return y + bias


def good():
    return known, [(torch.randn(2, 4),)] * 3
