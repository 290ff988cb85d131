"""logger.info in the forward: the logging module is not traced."""
import logging

import torch
from torch import nn

logger = logging.getLogger("trainer")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 4)

    def forward(self, x):
        h = self.a(x).relu()
        logger.info("hidden %s", tuple(h.shape))
        return self.b(h)


def make():
    return Encoder(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB104", "kind": "graph_break", "line": "logger.info(", "fix": ["is_compiling", "remove", "ignore_logger_methods", "ignore_logging_functions", "outside", "reorderable_logging_functions"]}]
