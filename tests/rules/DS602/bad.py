"""fullgraph=True captures .item(); the branch on its value is then an error."""
import torch

COMPILE = {"fullgraph": True}


def head(x, scores):
    count = (scores > 0).sum().item()
    if count > 2:
        return x[:2].sum()
    return x.sum()


def make():
    return head, [(torch.randn(6), torch.ones(6))]


EXPECT = [{"code": "DS602", "kind": "compile_error", "line": "if count > 2:", "severity": "high", "fix": ["torch._check", "torch.cond", "torch.where", "guard_or"]}]
