"""unique() counts classes inside a loss."""
import torch
import torch.nn.functional as F


def balanced_loss(logits, labels):
    logits = logits - logits.mean()
    classes = torch.unique(labels)
    return F.cross_entropy(logits, labels) / classes.numel()


def make():
    return balanced_loss, [(torch.randn(6, 4), torch.tensor([0, 1, 1, 2, 2, 2]))] * 2


EXPECT = [{"code": "GB103", "kind": "graph_break", "line": "torch.unique(labels)", "fix": ["bincount", "outside", "fixed", "capture_dynamic_output_shape_ops", "scatter", "static"]}]
