"""One training step with three troubles of different kinds, all of which must be listed."""
import torch
import torch.nn.functional as F
from torch import nn


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x, labels):
        logits = self.fc(x)
        valid = logits[labels >= 0]
        print("valid rows", valid.shape[0])
        loss = F.cross_entropy(valid, labels.clamp(min=0)[: valid.shape[0]])
        value = loss.item()
        return loss * 2, value


def make():
    return Step(), [(torch.randn(4, 6), torch.tensor([0, -1, 2, 3]))] * 3


EXPECT = [
    {"code": "GB103", "kind": "graph_break", "line": "logits[labels >= 0]", "fix": ["torch.where", "mask", "ignore_index", "capture_dynamic_output_shape_ops"]},
    {"code": "GB104", "kind": "graph_break", "line": "print(", "fix": ["is_compiling", "remove", "outside", "reorderable_logging_functions"]},
    {"code": "GB101", "kind": "graph_break", "line": "loss.item()", "fix": ["tensor", "detach", "outside", "capture_scalar_outputs"]},
]
