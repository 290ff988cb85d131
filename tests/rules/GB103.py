import torch
import torch.nn.functional as F


# Boolean-mask read.
def masked_loss(hidden, labels):
    hidden = hidden.tanh()
    picked = hidden[labels >= 0]  # <- GB103
    return F.cross_entropy(picked, labels.clamp(min=0)[: picked.shape[0]])


def bad():
    return masked_loss, [(torch.randn(4, 8), torch.tensor([1, -1, 2, -1]))] * 3


# one_hot without num_classes has to look at the largest label.
def soft_targets(logits, labels):
    target = F.one_hot(labels).float()  # <- GB103
    return -(target * logits.log_softmax(-1)).sum()


def bad_4():
    return soft_targets, [(torch.randn(3, 4), torch.tensor([0, 1, 3]))] * 2
