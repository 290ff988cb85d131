"""The model of `arrcoc` before the fixes, as such models are often written.

It normalises scores over the whole batch, after a test for equal scores that reads
their values in Python. It reads the number of selected patches out of a tensor. Its
`forward` creates constants as tensors on the CPU. It selects patches only by index, so
the gradient of the answer never reaches the scorers and the balancer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import arrcoc


def normalised(scores: Tensor) -> Tensor:
    """Scores (batch, patches), scaled to the range 0 to 1."""
    low, high = scores.min(), scores.max()
    if high == low:
        return torch.zeros_like(scores)
    return (scores - low) / (high - low)


class SalienceScorer(arrcoc.SalienceScorer):
    def slopes(self, plane: Tensor) -> Tensor:
        horizontal = torch.tensor([[arrcoc.SOBEL]]).to(plane)
        across = F.conv2d(plane, horizontal)
        return torch.cat((across, F.conv2d(plane, horizontal.transpose(2, 3))), dim=1)


class QueryContentScorer(arrcoc.QueryContentScorer):
    def scale(self) -> Tensor:
        return torch.sqrt(torch.tensor(self.dim))


class KnowingModule(arrcoc.KnowingModule):
    normalised = staticmethod(normalised)
    salience_scorer = SalienceScorer
    query_content_scorer = QueryContentScorer


class RelevanceAllocator(arrcoc.RelevanceAllocator):
    share: Tensor

    def __init__(self, size: arrcoc.Size) -> None:
        super().__init__(size)
        share = torch.tensor(size.kept / size.side**2)
        self.register_buffer("share", share, persistent=False)

    def forward(self, features: Tensor, relevance: Tensor) -> Tensor:
        count = int(torch.round(self.share * relevance.shape[1]))
        return self.select(features, relevance, count)


class ARRCOC(arrcoc.ARRCOC):
    knowing_module = KnowingModule
    relevance_allocator = RelevanceAllocator


def make(
    size: str = "tiny",
    batch: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Returns the model and calls of three batch sizes, one of them 1."""
    return arrcoc.make(size, batch, device=device, train=train, kind=ARRCOC)
