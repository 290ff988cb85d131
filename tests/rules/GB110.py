import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


# The training step, backward pass included, is inside the compiled function.
def bad():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def train_step(x, y):
        loss = F.mse_loss(net(x), y)
        loss.backward()  # <- GB110
        return loss.detach()

    return train_step, [(torch.randn(3, 4), torch.randn(3, 1))] * 3


# Forces as the gradient of an energy.
class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, positions):
        energy = self.net(positions).sum()
        forces = torch.autograd.grad(energy, positions)[0]  # <- GB110
        return energy.detach(), -forces


def bad_2():
    return Potential(), [(torch.randn(5, 3, requires_grad=True),)] * 3


# torch.func.grad gives the forces and is traced.
class Potential2(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def energy(self, positions):
        return self.net(positions).sum()

    def forward(self, positions):
        forces, energy = torch.func.grad_and_value(self.energy)(positions)
        return energy, -forces


def good():
    return Potential2(), [(torch.randn(5, 3),)] * 3


# Custom autograd functions, activation checkpointing.
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        x = checkpoint(self.block, x, use_reentrant=False)
        x = Clip.apply(x)
        x = torch.func.vmap(lambda row: row / (row.norm() + 1))(x)
        return self.head(x).mean()


def good_2():
    return Net(), [(torch.randn(3, 4),)] * 3
