import contextlib
import threading
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode


# A lock taken in a shared function.
LOCK = threading.Lock()


def shared(x):
    x = x.tanh()
    with LOCK:  # <- GB111
        x = x * 2
    return x


def bad():  # <- NC805
    return shared, [(torch.randn(2, 4),)] * 3


# A dispatch mode (FLOP counter and the like) entered in the forward.
class CountOps(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODE = CountOps()


def counted(x):
    x = x.relu()
    with MODE:  # <- GB111
        return x * 2


def bad_3():  # <- NC805
    return counted, [(torch.randn(2, 4),)] * 3


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
