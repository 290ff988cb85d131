import dataclasses
import torch
import torch.nn.functional as F
from torch import nn


# A Python int argument.
def warmup_scale(x, step):
    return x * (step / 100)  # <- RC210


def bad():
    return warmup_scale, [(torch.randn(4), step) for step in (10, 11, 12, 13, 14)]


# A string argument picks the reduction.
class Loss(nn.Module):
    def forward(self, prediction, target, reduction):
        error = (prediction - target).pow(2)
        if reduction == "sum":  # <- RC210
            return error.sum()
        return error.mean() if reduction == "mean" else error


def bad_2():
    a, b = torch.randn(4), torch.randn(4)
    return Loss(), [(a, b, name) for name in ("mean", "sum", "none")]


# A closure made anew for every call, each with another bound string.
def scorer(kind):
    def score(x):
        return x.pow(2) if kind.startswith("l2") else x.abs()  # <- RC210

    return score


def apply(x, fn):
    return fn(x).sum()


def bad_6():
    return apply, [(torch.randn(4), scorer(f"l2-{index}")) for index in range(4)]


# The changing number is a tensor.
def good():
    return warmup_scale, [(torch.randn(4), torch.tensor(float(step))) for step in (10, 11, 12, 13, 14)]


# Python arguments that never change, and one that changes but is not used.
def attend2(scores, causal, scale, reduction="mean", step=0):
    if causal:
        scores = scores.tril()
    weights = (scores * scale).softmax(-1)
    return weights.mean() if reduction == "mean" else weights.sum()


def good_2():
    return attend2, [(torch.randn(4, 4), True, 0.5, "mean", step) for step in range(4)]


# A decoder step that takes its position as a tensor, with masks.
@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 8
    heads: int = 2
    activation: str = "gelu"


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.up = nn.Linear(config.width, config.width)

    def forward(self, x, position, mask=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.config.heads, -1).permute(2, 0, 3, 1, 4)
        q = q * torch.cos(position.float())
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + y.transpose(1, 2).reshape(batch, length, width)
        return x + getattr(F, self.config.activation)(self.up(x))


def good_3():
    return Block(Config()), [(torch.randn(2, 4, 8), torch.tensor(index)) for index in range(4)]
