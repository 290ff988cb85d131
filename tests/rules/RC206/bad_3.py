"""A tensor of inference mode in some calls: other dispatch keys, the same device."""
import torch


def next_logits(token, table):
    return table[token].softmax(-1)


def make():
    table = torch.randn(10, 4)
    with torch.inference_mode():
        sampled = torch.tensor([2, 3])
    return next_logits, [(torch.tensor([1, 2]), table), (sampled, table), (sampled, table)]


EXPECT = [{"code": "RC206", "kind": "recompile", "line": "def next_logits(token, table):", "fix": ["inference_mode"]}]
