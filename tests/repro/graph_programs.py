"""Programs whose graphs are recorded, and drafts run as a repro would run them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs.graph_recorder import recorder


class Attention(torch.nn.Module):
    """A block of a transformer, with much of what graphs hold."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.private_table = torch.nn.Embedding(50, width)
        self.private_norm = torch.nn.LayerNorm(width)
        self.private_projection = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        mask = torch.triu(torch.full((8, 8), float("-inf")), 1)
        self.register_buffer("private_mask", mask)

    def forward(self, private_ids, private_scale):
        x = self.private_table(private_ids)
        q, k, v = self.private_projection(self.private_norm(x)).chunk(3, -1)
        a = (q @ k.transpose(-1, -2) / 4 + self.private_mask).softmax(-1) @ v
        with torch.no_grad():
            y = a.sin()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.out(a)
        x = x + z.float() + y
        x[:, 0] = 1
        largest, _ = x.max(-1)
        return F.gelu(x) * private_scale.t(), largest


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


linear = torch.nn.Linear(8, 8)


def checkpointed(x):
    return checkpoint(lambda a: linear(a).tanh(), x, use_reentrant=False) + 1


def own_function(x):
    return Square.apply(x) + 1


@torch.compiler.nested_compile_region
def region(x):
    return torch.relu(linear(x)).sin()


def regions(x):
    return region(region(x))


def indexed(x):
    made = torch.zeros(16, 8)
    made[2:5, ::2] += 1
    return x[:, None, ..., 1:-1:2], x[..., [1, 3]], made, x.double() ** 2, ~(x > 0)


def recorded(
    run: Callable[[], Any], folder: Path, *, weights: bool = False
) -> tuple[list[Candidate], list[str]]:
    """The last draft of each graph that is captured, and why others have none."""
    torch._dynamo.reset()
    drafts: dict[str, Candidate] = {}
    refused: list[str] = []
    with recorder(
        lambda draft: drafts.update({draft.origin: draft}),
        folder,
        weights=weights,
        refuse=refused.append,
    ):
        run()
    return list(drafts.values()), refused


def made(draft: Candidate, folder: Path) -> tuple[Any, list[Any]]:
    """What a draft's `make()` gives, its files beside it."""
    for name, content in draft.files.items():
        (folder / name).write_bytes(content)
    module: Any = types.ModuleType("draft_under_test")
    module.__file__ = str(folder / "repro.py")
    sys.modules[module.__name__] = module
    exec(compile(draft.source, "draft_under_test", "exec"), vars(module))
    return module.make()
