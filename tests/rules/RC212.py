import torch
from torch import nn


# A key/value cache kept as a growing Python list.
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.kv = nn.Linear(4, 4)

    def forward(self, token, past):
        keys = torch.cat([*past, self.kv(token)])  # <- RC212
        return (token @ keys.t()).softmax(-1)


def bad():
    past = [torch.randn(1, 4) for _ in range(6)]
    return Decoder(), [(torch.randn(1, 4), past[:n]) for n in (2, 3, 4, 5)]


# A dictionary whose keys change from batch to batch.
class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 2) for name in ("a", "b", "c")})

    def forward(self, batch):
        return {name: self.heads[name](x) for name, x in batch.items()}  # <- RC212


def bad_2():
    return MultiTask(), [({name: torch.randn(2, 4) for name in names},) for names in ("ab", "ac", "bc")]


# A hook fills a dictionary that was empty at the first call.
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)
        self.activations = {}
        self.a.register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.activations["a"] = output.detach()  # <- RC212

    def forward(self, x):
        return self.b(self.a(x).relu())


def bad_4():
    return Net(), [(torch.randn(3, 4),)] * 4
