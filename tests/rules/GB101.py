import torch
import torch.nn.functional as F


# A loss is read for the log, and two breaks of other kinds are in the same step.
def step(logits, labels):
    valid = logits[labels >= 0]  # <- GB103
    print("valid rows", valid.shape[0])  # <- GB104
    loss = F.cross_entropy(valid, labels.clamp(min=0)[: valid.shape[0]])
    logs = {"loss": loss.item()}  # <- GB101
    return loss * 2, logs


def bad():
    return step, [(torch.randn(4, 6), torch.tensor([0, -1, 2, 3]))] * 3
