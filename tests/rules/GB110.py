import torch
import torch.nn.functional as F
from torch import nn


# The training step, backward pass included, is inside the compiled function.
def bad():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def train_step(x, y):
        loss = F.mse_loss(net(x), y)
        loss.backward()  # <- GB110
        return loss.detach()

    return train_step, [(torch.randn(3, 4), torch.randn(3, 1))] * 3


# Forces as the gradient of an energy.
def potential(positions):
    energy = positions.tanh().sum()
    forces = torch.autograd.grad(energy, positions)[0]  # <- GB110
    return energy.detach(), -forces


def bad_2():
    return potential, [(torch.randn(5, 3, requires_grad=True),)] * 3
