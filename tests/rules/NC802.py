import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# torch.compile(module) wraps forward only.
class AutoEncoder(nn.Module):
    def encode(self, x):
        return x.tanh()

    def forward(self, x):
        return self.encode(x) * 2


def bad():
    model = torch.compile(AutoEncoder(), backend="eager")

    def features(x):
        return model.encode(x)  # <- NC802

    return features, [(torch.randn(3, 8),)] * 3


# generate() of a compiled model calls self(...), which is the original.
class Decoder(nn.Module):
    def forward(self, x):
        return x * 2

    def generate(self, x, steps):
        for _ in range(steps):
            x = self(x)
        return x


def bad_2():
    model = torch.compile(Decoder(), backend="eager")

    def serve(x):
        return model.generate(x, 3)  # <- NC802

    return serve, [(torch.randn(3),)] * 2


# A function, which reading alone shows.
def generated(model, ids):
    model = torch.compile(model, backend="eager")
    return model.generate(ids)  # read: NC802


# The method itself is compiled.
def good():
    model = AutoEncoder()
    model.encode = torch.compile(model.encode, backend="eager")
    return lambda x: model.encode(x), [(torch.randn(3, 8),)] * 3


# Methods of a module that compile nothing, and an attribute of an output.
def moved(model, x):
    fast = torch.compile(model, backend="eager")
    fast.train()
    fast.to("cpu")
    return fast(x).encode
