"""A model that reads its surroundings in many ways, and what a program changes there.

Each change is made to a model and to its twin, with the same values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

Optimizer = torch.optim.Optimizer | None


class Net(nn.Module):
    """Looks at its surroundings in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.b = nn.Linear(8, 2)
        self.config = SimpleNamespace(scale=1.0, act="relu")
        self.modes = {"skip": False}
        self.layers = ["a", "b"]
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x) * self.config.scale
        if self.modes["skip"]:
            hidden = hidden + 1
        hidden = self.norm(hidden)
        hidden = hidden.relu() if self.config.act == "relu" else hidden.tanh()
        return self.b(hidden * len(self.layers) + self.table)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    return values.to(tensor.dtype).view(tensor.shape)


@torch.no_grad()
def change_weight(net: Net, optimizer: Optimizer) -> None:
    net.a.weight.mul_(1.1)


def replace_weight(net: Net, optimizer: Optimizer) -> None:
    old = net.a.weight
    net.a.weight = nn.Parameter(_like(old, torch.linspace(-1, 1, 32)))
    if optimizer is not None:
        optimizer.state.pop(old, None)
        (group,) = optimizer.param_groups
        group["params"] = [
            net.a.weight if each is old else each for each in group["params"]
        ]


def move_weight(net: Net, optimizer: Optimizer) -> None:
    net.b.weight.data = net.b.weight.data.clone() * 0.9


def flip_training(net: Net, optimizer: Optimizer) -> None:
    net.train(not net.training)


def set_scale(net: Net, optimizer: Optimizer) -> None:
    net.config.scale = 3.0 - net.config.scale


def set_activation(net: Net, optimizer: Optimizer) -> None:
    net.config.act = "tanh" if net.config.act == "relu" else "relu"


def flip_mode(net: Net, optimizer: Optimizer) -> None:
    net.modes["skip"] = not net.modes["skip"]


def change_list(net: Net, optimizer: Optimizer) -> None:
    if len(net.layers) < 3:
        net.layers.append("c")
    else:
        net.layers.pop()


def replace_table(net: Net, optimizer: Optimizer) -> None:
    net.table = net.table + 1


def drop_gradients(net: Net, optimizer: Optimizer) -> None:
    net.zero_grad()


def zero_gradients(net: Net, optimizer: Optimizer) -> None:
    net.zero_grad(set_to_none=False)


def set_gradient(net: Net, optimizer: Optimizer) -> None:
    net.b.bias.grad = torch.ones_like(net.b.bias)


def freeze(net: Net, optimizer: Optimizer) -> None:
    net.a.weight.requires_grad_(not net.a.weight.requires_grad)


def load(net: Net, optimizer: Optimizer) -> None:
    net.load_state_dict(copy.deepcopy(net.state_dict()))


Change = Callable[[Net, Optimizer], None]
CHANGES: tuple[Change, ...] = (
    *(change_weight, replace_weight, move_weight, flip_training, set_scale),
    *(set_activation, flip_mode, change_list, replace_table, drop_gradients),
    *(zero_gradients, set_gradient, freeze, load),
)
