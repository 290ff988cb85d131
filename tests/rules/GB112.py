import torch
from torch import nn

OPTIONS = {"bad_5": {"as_written": True}}


# A custom exception that carries a tensor is raised and caught as control flow.
class Done(Exception):
    def __init__(self, value):
        super().__init__("done")  # <- GB112<2.14
        self.value = value


class Halting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def run(self, x):
        for depth, layer in enumerate(self.layers):
            x = layer(x)
            if depth == 1:
                raise Done(x)

    def forward(self, x):
        x = x.tanh()
        try:
            self.run(x)
        except Done as stop:
            x = stop.value
        return x * 2


def bad():  # <- NC805
    return Halting(), [(torch.randn(2, 4),)] * 3


# A failed assert on a shape, caught.
def square_or_pad(x):
    x = x * 2
    try:
        assert x.shape[0] == x.shape[1]  # <- GB112
    except AssertionError:
        x = torch.nn.functional.pad(x, (0, x.shape[0] - x.shape[1]))
    return x.tril()


def bad_2():  # <- NC805
    return square_or_pad, [(torch.randn(4, 3),)] * 3


# except* (exception groups) has bytecode that Dynamo does not know.
def tolerant(x):
    x = x.relu()
    try:
        if x.dim() == 1:
            raise ExceptionGroup("shape", [ValueError("one dimension")])
    except* ValueError:  # <- GB112
        x = x.unsqueeze(0)
    return x * 2


def bad_3():  # <- NC805
    return tolerant, [(torch.randn(4),)] * 3


# The compiled function reports bad input by raising.
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x[..., :4])
        if x.shape[-1] != 4:
            raise ValueError("expected four features")  # <- GB112
        return h.relu()


def bad_5():
    compiled = torch.compile(Model(), backend="eager")  # <- NC805

    def serve(x):
        try:
            return compiled(x)
        except ValueError:
            return None

    return serve, [(torch.randn(2, 5),)] * 3


# Ordinary try/except on Python values, raised and caught inside, is followed.
try:
    from fused_kernels_that_are_not_installed import rms_norm
except ImportError:
    rms_norm = None


class Unsupported(Exception):
    pass


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.options = {}

    def eps(self):
        try:
            return self.options["eps"]
        except KeyError:
            return 1e-6

    def fused(self, x):
        if rms_norm is None:
            raise Unsupported("no kernel")
        return rms_norm(x, self.weight)

    def forward(self, x):
        if x.shape[-1] != 4:
            raise ValueError(f"expected width 4, got {x.shape[-1]}")
        try:
            return self.fused(x)
        except Unsupported:
            return x * (x.pow(2).mean(-1, keepdim=True) + self.eps()).rsqrt() * self.weight


def good():
    return Norm(), [(torch.randn(2, 4),)] * 3
