"""Metadata that is traced: requires_grad, detach, dtype, layout, device, stride, shape, is_contiguous."""
import torch
from torch import nn


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        if y.requires_grad and torch.is_grad_enabled():
            y = y * 2
        if y.layout is torch.strided and y.is_contiguous() and y.stride(0) == 4 and y.device.type == "cpu":
            y = y.detach() + y
        y = y.view(torch.Size([y.numel()])).to(x.dtype)
        return y.relu() + y.ndim + y.element_size()


def make():
    return Probe(), [(torch.randn(2, 4),)] * 3


EXPECT = []
