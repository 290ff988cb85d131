import torch
from torch import nn


# A dictionary whose keys change from batch to batch.
def multi_task(batch):
    return {name: x * 2 for name, x in batch.items()}  # <- RC212


def bad():
    return multi_task, [({name: torch.randn(2, 4) for name in names},) for names in ("ab", "ac", "bc")]


# A hook fills a dictionary that was empty at the first call.
ACTIVATIONS = {}


def keep(module, inputs, output):
    ACTIVATIONS["a"] = output.detach()  # <- RC212


def bad_4():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    net[0].register_forward_hook(keep)
    return net, [(torch.randn(3, 4),)] * 4
