"""Output outside of the region, behind switches, and where the program fails."""

import logging

import torch
from torch import nn

logger = logging.getLogger(__name__)
DEBUG = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        print("made", end="")
        self.fc = nn.Linear(4, 4)
        self.verbose = False

    def forward(self, x):
        if DEBUG:
            print("x", x)
        if self.verbose:
            print("x", x)
        if not torch.compiler.is_compiling():
            logger.info("eager")
        if x.shape[-1] != 4:
            logger.error("bad shape")
            raise ValueError("print('bad shape')")
        return self.fc(x)


def make():
    print("ready")
    return Net(), [(torch.rand(2, 4),)] * 2
