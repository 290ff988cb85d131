import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# A function and a method are compiled where they are defined, but not called.
@torch.compile(backend="eager")  # run: NC801
def step(parameter, gradient):
    return parameter - 0.1 * gradient


class Model(nn.Module):
    @torch.compile(  # run: NC801
        backend="eager",
    )
    def sample(self, x):
        return x.argmax(-1)

    @torch.compile(backend="eager")
    def forward(self, x):
        return x * 2


def bad_2():
    return Model(), [(torch.randn(2, 4),)] * 3
