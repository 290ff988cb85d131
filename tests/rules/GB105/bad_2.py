"""hashlib inside the forward: two C calls, two breaks on the same line."""
import hashlib

import torch


def salted(x, salt):
    x = x.relu()
    digest = hashlib.sha256(salt.encode()).hexdigest()
    return x + len(digest)


def make():
    return salted, [(torch.randn(4), "pepper")] * 2


EXPECT = [{"code": "GB105", "kind": "graph_break", "line": "hashlib.sha256(", "fix": ["outside", "__init__", "custom_op", "precompute", "custom op"]}]
