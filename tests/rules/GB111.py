import contextlib
import threading
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode


# A lock taken in the forward of a shared module.
class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lock = threading.Lock()

    def forward(self, x):
        x = x.tanh()
        with self.lock:  # <- GB111
            x = self.fc(x)
        return x


def bad():  # <- NC805
    return Shared(), [(torch.randn(2, 4),)] * 3


# torch.device as a context manager.
def positions(x):
    x = x * 2
    with torch.device("cpu"):  # <- GB111
        steps = torch.arange(4)
    return x + steps


def bad_2():  # <- NC805
    return positions, [(torch.randn(2, 4),)] * 3


# A dispatch mode (FLOP counter and the like) entered in the forward.
class CountOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.mode = CountOps()

    def forward(self, x):
        x = x.relu()
        with self.mode:  # <- GB111
            return self.fc(x)


def bad_3():  # <- NC805
    return Counted(), [(torch.randn(2, 4),)] * 3


# Context managers Dynamo knows, and a user's own without a break inside.
@contextlib.contextmanager
def section(name):
    yield name


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        with section("first"):
            x = self.a(x).relu()
        with torch.no_grad(), contextlib.nullcontext():
            bias = x.mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.b(x)
        q = x.float().view(1, 1, 2, 4)
        with sdpa_kernel(SDPBackend.MATH):
            y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return y + bias


def good():
    return Net(), [(torch.randn(2, 4),)] * 3
