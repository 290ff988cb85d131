"""Question answering on the most relevant patches of an image (ViT-B/16 in `base`).

Three scorers rate the patches: information, salience, and fit to a query. The model
weighs the three maps for the query, selects the top patches, and computes the answer
from them. The forward makes a hard selection. The backward uses the gradient of a soft
one: the mean of all patches weighted by relevance. The loss trains the scorers and the
balancer, also on patches that were not selected. Scores are scaled to the range 0 to 1
for each sample, so that they do not depend on the rest of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.layers import Vision, VisionTransformer

SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
TINY = 1e-8


@dataclass(frozen=True)
class Size:
    """The dimensions of backbone and head, and the number of selected patches."""

    vision: Vision
    kept: int
    answers: int
    batch: int

    @property
    def dim(self) -> int:
        return self.vision.dim

    @property
    def side(self) -> int:
        return self.vision.side


SIZES = {
    "tiny": Size(Vision(64, 256, 2, 4, image=64), kept=6, answers=16, batch=4),
    "base": Size(Vision(768, 3072, 12, 12, image=224), kept=64, answers=1000, batch=32),
}


# -- scores ----------------------------------------------------------------------------


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
        return (self.slopes(plane).square().sum(1) + TINY).sqrt().flatten(1)

    def slopes(self, plane: Tensor) -> Tensor:
        """Across and down, (batch, 2, side, side)."""
        # For a convolution with an unbacked batch, Inductor assumes wrong strides.
        windows = plane.unfold(2, 3, 1).unfold(3, 3, 1)  # (batch, 1, side, side, 3, 3)
        return torch.einsum("nchwij,kij->nkhw", windows, precise(self.kernels))


class QueryContentScorer(nn.Module):
    """Queries (batch, queries, dim), content (batch, patches, dim) -> the share of each
    query's attention for each patch (batch, queries, patches)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.query = nn.Linear(dim, dim, bias=False)
        self.content = nn.Linear(dim, dim, bias=False)

    def forward(self, queries: Tensor, content: Tensor) -> Tensor:
        fit = self.query(queries) @ self.content(content).transpose(1, 2)
        return (precise(fit) / self.scale()).softmax(-1)

    def scale(self) -> float | Tensor:
        return math.sqrt(self.dim)


class KnowingModule(nn.Module):
    """Features (batch, patches, dim) and queries (batch, queries, dim) -> the maps of
    the three scorers (batch, patches), each from 0 to 1."""

    normalised = staticmethod(normalised)
    salience_scorer = SalienceScorer
    query_content_scorer = QueryContentScorer

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.information = InformationScorer(dim)
        self.salience = self.salience_scorer(dim, side)
        self.query_content = self.query_content_scorer(dim)

    def forward(
        self, features: Tensor, queries: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        information = self.normalised(self.information(features))
        salience = self.normalised(self.salience(features))
        query_content = self.query_content(queries, features).mean(1)
        return information, salience, self.normalised(query_content)


# -- the model -------------------------------------------------------------------------


class TensionBalancer(nn.Module):
    """Three maps (batch, 3, patches) and a query (batch, dim) -> the weight of each map
    (batch, 3), with a sum of 1."""

    def __init__(self, dim: int, hidden: int = 128) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(9 + dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 3),
        )

    def forward(self, maps: Tensor, query: Tensor) -> Tensor:
        # The variance of a blank map is 0, where sqrt has no finite gradient.
        spread = (maps.var(-1) + TINY).sqrt()
        statistics = torch.cat((maps.mean(-1), maps.amax(-1), spread), dim=-1)
        inputs = torch.cat((statistics.to(query.dtype), query), dim=-1)
        return self.mlp(inputs).softmax(-1)


class RelevanceAllocator(nn.Module):
    """Features (batch, patches, dim) and their relevance (batch, patches) -> the
    `kept` most relevant features (batch, kept, dim)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.kept = size.kept

    def forward(self, features: Tensor, relevance: Tensor) -> Tensor:
        selected = self.select(features, relevance, self.kept)
        share = relevance.softmax(-1).unsqueeze(1).to(features.dtype)
        blend = share @ features.detach()  # (batch, 1, dim)
        return selected + (blend - blend.detach())

    def select(self, features: Tensor, relevance: Tensor, count: int) -> Tensor:
        where = relevance.topk(count, dim=-1).indices
        where = where.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        return features.gather(1, where)  # `take_along_dim` needs a static batch


class RelevanceRealizer(nn.Module):
    """Selected features (batch, kept, dim), a query (batch, dim) -> answer logits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.dim)
        self.mlp = nn.Sequential(nn.Linear(size.dim, size.dim), nn.GELU())
        self.head = nn.Linear(size.dim, size.answers)

    def forward(self, selected: Tensor, query: Tensor) -> Tensor:
        return self.head(self.mlp(self.norm(selected.mean(1) + query)))


class ARRCOC(nn.Module):
    """Images (batch, 3, image, image), queries (batch, queries, dim) -> answer logits
    (batch, answers)."""

    knowing_module = KnowingModule
    relevance_allocator = RelevanceAllocator

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.backbone = VisionTransformer(size.vision, class_token=True)
        self.knowing = self.knowing_module(size.dim, size.side)
        self.balancer = TensionBalancer(size.dim)
        self.allocator = self.relevance_allocator(size)
        self.realizer = RelevanceRealizer(size)

    def relevance(self, features: Tensor, queries: Tensor) -> Tensor:
        """The relevance of each patch to the queries, from 0 to 1 (batch, patches)."""
        maps = torch.stack(self.knowing(features, queries), dim=1)
        counts = self.balancer(maps, queries.mean(1))
        return self.knowing.normalised((counts.unsqueeze(-1) * maps).sum(1))

    def forward(self, images: Tensor, queries: Tensor) -> Tensor:
        features = self.backbone(images)
        selected = self.allocator(features, self.relevance(features, queries))
        return self.realizer(selected, queries.mean(1))


def samples(
    size: Size, batch: int, device: str, *, scorers: bool = False
) -> tuple[Tensor, Tensor]:
    """Random images, or features for the scorers alone, and queries (batch, 1, dim)."""
    dtype = synthetic.number_type(device)
    shape = (size.side**2, size.dim) if scorers else (3, *[size.vision.image] * 2)
    with torch.device(device):
        first = torch.randn(batch, *shape, dtype=dtype)
        return first, torch.randn(batch, 1, size.dim, dtype=dtype)


def make(
    size: str = "tiny",
    batch: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
    scorers: bool = False,
    kind: type[ARRCOC] = ARRCOC,
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Returns the model and calls of three batch sizes, one of them 1.

    With `scorers`, the model is the three scorers alone.
    """
    torch.manual_seed(0)
    spec = SIZES[size]
    model: nn.Module
    with torch.device(device):
        model = KnowingModule(spec.dim, spec.side) if scorers else kind(spec)
    calls = [
        samples(spec, batch or usual, device, scorers=scorers)
        for usual in (spec.batch, 1, spec.batch + 1, spec.batch)
    ]
    if kind is ARRCOC:
        for call in calls:
            synthetic.any_batch(*call)
    model = model.to(synthetic.number_type(device))
    return model.train(train).requires_grad_(train), calls
