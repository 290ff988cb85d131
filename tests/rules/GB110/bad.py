"""The training step, backward pass included, is inside the compiled function."""
import torch
import torch.nn.functional as F
from torch import nn


def make():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def train_step(x, y):
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss.detach()

    return train_step, [(torch.randn(3, 4), torch.randn(3, 1))] * 3


EXPECT = [{"code": "GB110", "kind": "graph_break", "line": "loss.backward()", "fix": ["outside", "compiled_autograd", "trace_autograd_ops", "only the forward", "loss"]}]
