import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# torch.compile(module) wraps forward only.
class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(8, 2)
        self.up = nn.Linear(2, 8)

    def encode(self, x):
        return self.down(x).tanh()

    def forward(self, x):
        return self.up(self.encode(x))


def bad():
    model = torch.compile(AutoEncoder(), backend="eager")

    def features(x):
        return model.encode(x)  # <- NC802

    return features, [(torch.randn(3, 8),)] * 3


# generate() of a compiled model calls self(...), which is the original.
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, ids):
        return self.head(self.embed(ids))

    @torch.no_grad()
    def generate(self, ids, steps):
        for _ in range(steps):
            token = self(ids)[-1:].argmax(-1)
            ids = torch.cat([ids, token])
        return ids


def bad_2():
    model = torch.compile(Decoder(), backend="eager")

    def serve(ids):
        return model.generate(ids, 3)  # <- NC802

    return serve, [(torch.tensor([1, 2, 3]),)] * 2


# The method itself is compiled.
def good():
    model = AutoEncoder()
    model.encode = torch.compile(model.encode, backend="eager")

    def features(x):
        return model.encode(x)

    return features, [(torch.randn(3, 8),)] * 3
