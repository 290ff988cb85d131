import torch
import torch.nn.functional as F
from torch import nn


# Boolean-mask read.
class MaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, ids, labels):
        hidden = self.embed(ids)
        picked = hidden[labels >= 0]  # <- GB103
        logits = self.head(picked)
        return F.cross_entropy(logits, labels.clamp(min=0).flatten()[:logits.shape[0]])


def bad():
    ids = torch.randint(0, 10, (2, 6))
    labels = torch.tensor([[1, -1, 2, -1, -1, 3], [-1, -1, 4, 5, -1, -1]])
    return MaskedLM(), [(ids, labels)] * 3


# nonzero() to find the positions of a token.
def first_end(ids, hidden):
    hidden = hidden.tanh()
    positions = torch.nonzero(ids == 2)  # <- GB103
    return hidden[positions[:, 0]].mean(0)


def bad_2():
    return first_end, [(torch.tensor([1, 2, 3, 2]), torch.randn(4, 5))] * 2


# unique() counts classes inside a loss.
def balanced_loss(logits, labels):
    logits = logits - logits.mean()
    classes = torch.unique(labels)  # <- GB103
    return F.cross_entropy(logits, labels) / classes.numel()


def bad_3():
    return balanced_loss, [(torch.randn(6, 4), torch.tensor([0, 1, 1, 2, 2, 2]))] * 2


# one_hot without num_classes has to look at the largest label.
class SoftTargets(nn.Module):
    def forward(self, logits, labels):
        target = F.one_hot(labels).float()  # <- GB103
        return -(target * logits.log_softmax(-1)).sum()


def bad_4():
    return SoftTargets(), [(torch.randn(3, 4), torch.tensor([0, 1, 3]))] * 2


# repeat_interleave with a tensor of counts and no output_size.
class LengthRegulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, phonemes, durations):
        phonemes = phonemes.relu()
        frames = phonemes.repeat_interleave(durations, dim=0)  # <- GB103
        return self.out(frames)


def bad_5():
    return LengthRegulator(), [(torch.randn(3, 4), torch.tensor([2, 1, 3]))] * 2


# torch.where with one argument is nonzero in disguise.
def dispatch(tokens, assignment, score):
    tokens = tokens * 2
    rows, columns = torch.where(assignment)  # <- GB103
    kept = torch.masked_select(score, score > 0.5)  # <- GB103
    return tokens[rows].sum(0) + columns.float().mean() + kept.sum()


def bad_6():
    return dispatch, [(torch.randn(3, 4), torch.tensor([[True, False], [False, True], [True, True]]), torch.rand(8))] * 2


# The mask is applied through ignore_index.
class MaskedLM2(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, ids, labels):
        hidden = self.embed(ids)
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


def good():
    ids = torch.randint(0, 10, (2, 6))
    labels = torch.tensor([[1, -1, 2, -1, -1, 3], [-1, -1, 4, 5, -1, -1]])
    return MaskedLM2(), [(ids, labels)] * 3


# Mask assignment, three-argument where, sized one_hot and repeat_interleave, topk.
def fixed(x, labels, counts):
    x = x.clone()
    x[x < 0] = 0
    x = x.masked_fill(x > 2, 2.0)
    hot = F.one_hot(labels, num_classes=4).float()
    longer = x.repeat_interleave(counts, dim=0, output_size=5)
    best = x.topk(2, dim=-1).indices
    where = torch.nonzero_static(labels == 1, size=3)
    return torch.where(hot > 0, x, -x).sum() + longer.sum() + x.gather(1, best).sum() + where.sum()


def good_2():
    return fixed, [(torch.randn(3, 4), torch.tensor([0, 1, 3]), torch.tensor([1, 2, 2]))] * 3
