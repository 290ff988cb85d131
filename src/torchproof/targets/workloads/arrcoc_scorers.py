"""Three scores for the patches of an image: information, salience, and fit to a query.

Each scorer has trainable weights: which channels count, or how queries match content.
`KnowingModule` scales each of the three maps to the range 0 to 1 for each sample, so
that a score does not depend on the rest of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import synthetic

SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
TINY = 1e-8


@dataclass(frozen=True)
class Size:
    """The scored features: a grid of `side` x `side` patches with `dim` channels."""

    side: int
    dim: int
    batch: int


SIZES = {
    "tiny": Size(side=4, dim=64, batch=4),
    "base": Size(side=14, dim=768, batch=32),
}


def precise(x: Tensor) -> Tensor:
    """Converts to float32 or more: bfloat16 resolves a patch's entropy only to 0.03."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def normalised(scores: Tensor) -> Tensor:
    """Scales each sample's scores (batch, patches) to 0..1; equal scores become 0."""
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) / (high - low).clamp_min(TINY)


class InformationScorer(nn.Module):
    """Features (batch, patches, dim) -> entropy over the channels (batch, patches)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.channel_scale = nn.Parameter(torch.ones(dim))

    def forward(self, features: Tensor) -> Tensor:
        log_share = precise(features * self.channel_scale).log_softmax(-1)
        return -(log_share.exp() * log_share).sum(-1)


class SalienceScorer(nn.Module):
    """Features (batch, patches, dim) -> edge strength on the grid (batch, patches)."""

    kernels: Tensor

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.side = side
        # Learned, because after a LayerNorm the mean of the channels is always 0.
        self.channel_mix = nn.Linear(dim, 1, bias=False)
        horizontal = torch.tensor(SOBEL)
        kernels = torch.stack((horizontal, horizontal.T))  # (2, 3, 3)
        self.register_buffer("kernels", kernels, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        plane = self.channel_mix(features).transpose(1, 2)  # (batch, 1, patches)
        plane = plane.unflatten(-1, (self.side, self.side))
        # Repeat the border: with zero padding, every border would be an edge.
        plane = F.pad(precise(plane), (1, 1, 1, 1), mode="replicate")
        # For a convolution with an unbacked batch, Inductor assumes wrong strides.
        windows = plane.unfold(2, 3, 1).unfold(3, 3, 1)  # (batch, 1, side, side, 3, 3)
        slopes = torch.einsum("nchwij,kij->nkhw", windows, precise(self.kernels))
        return (slopes.square().sum(1) + TINY).sqrt().flatten(1)


class QueryContentScorer(nn.Module):
    """Queries (batch, queries, dim), content (batch, patches, dim) -> the share of each
    query's attention for each patch (batch, queries, patches)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.content = nn.Linear(dim, dim, bias=False)

    def forward(self, queries: Tensor, content: Tensor) -> Tensor:
        fit = self.query(queries) @ self.content(content).transpose(1, 2)
        return (precise(fit) * self.scale).softmax(-1)


class KnowingModule(nn.Module):
    """Features (batch, patches, dim) and queries (batch, queries, dim) -> the maps of
    the three scorers (batch, patches), each from 0 to 1."""

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.information = InformationScorer(dim)
        self.salience = SalienceScorer(dim, side)
        self.query_content = QueryContentScorer(dim)

    def forward(
        self, features: Tensor, queries: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return (
            normalised(self.information(features)),
            normalised(self.salience(features)),
            normalised(self.query_content(queries, features).mean(1)),
        )


work = synthetic.images


def make(
    size: str = "tiny",
    batch: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[KnowingModule, list[tuple[Tensor, Tensor]]]:
    """Returns the module and calls of three batch sizes, one of them 1."""
    torch.manual_seed(0)
    spec = SIZES[size]
    usual = (spec.batch, 1, spec.batch + 1, spec.batch)
    counts = synthetic.sizes_of_calls(batch, usual)
    dtype = synthetic.number_type(device)
    calls = []
    with torch.device(device):
        module = KnowingModule(spec.dim, spec.side).to(dtype)
        for samples in counts:
            features = torch.randn(samples, spec.side**2, spec.dim, dtype=dtype)
            queries = torch.randn(samples, 1, spec.dim, dtype=dtype)
            synthetic.any_batch(features, queries)
            calls.append((features, queries))
    return module.train(train).requires_grad_(train), calls
