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

from torchproof.targets.workloads import arrcoc, arrcoc_scorers, synthetic
from torchproof.targets.workloads.arrcoc import SIZES, Size, samples
from torchproof.targets.workloads.arrcoc_scorers import SOBEL, TINY, precise


def normalised(scores: Tensor) -> Tensor:
    """Scores (batch, patches), scaled to the range 0 to 1."""
    low, high = scores.min(), scores.max()
    if high == low:
        return torch.zeros_like(scores)
    return (scores - low) / (high - low)


class SalienceScorer(nn.Module):
    """Features (batch, patches, dim) -> edge strength on the grid (batch, patches)."""

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.channel_mix = nn.Linear(dim, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        plane = self.channel_mix(features).transpose(1, 2)  # (batch, 1, patches)
        plane = plane.unflatten(-1, (self.side, self.side))
        plane = F.pad(precise(plane), (1, 1, 1, 1), mode="replicate")
        horizontal = torch.tensor([[SOBEL]]).to(plane)
        across = F.conv2d(plane, horizontal)
        down = F.conv2d(plane, horizontal.transpose(2, 3))
        return torch.sqrt(across**2 + down**2 + TINY).flatten(1)


class QueryContentScorer(arrcoc_scorers.QueryContentScorer):
    """Queries (batch, queries, dim), content (batch, patches, dim) -> the share of each
    query's attention for each patch (batch, queries, patches)."""

    def forward(self, queries: Tensor, content: Tensor) -> Tensor:
        fit = self.query(queries) @ self.content(content).transpose(1, 2)
        scale = torch.sqrt(torch.tensor(queries.shape[-1]))
        return (precise(fit) / scale).softmax(-1)


class KnowingModule(nn.Module):
    """Features (batch, patches, dim) and queries (batch, queries, dim) -> the maps of
    the three scorers (batch, patches), each from 0 to 1."""

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.information = arrcoc_scorers.InformationScorer(dim)
        self.salience = SalienceScorer(dim, side)
        self.query_content = QueryContentScorer(dim)

    def forward(
        self, features: Tensor, queries: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        information = normalised(self.information(features))
        salience = normalised(self.salience(features))
        query_content = normalised(self.query_content(queries, features).mean(1))
        return information, salience, query_content


class RelevanceAllocator(nn.Module):
    """Features (batch, patches, dim) and their relevance (batch, patches) -> the
    most relevant features (batch, kept, dim)."""

    share: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        share = torch.tensor(size.kept / size.side**2)
        self.register_buffer("share", share, persistent=False)

    def forward(self, features: Tensor, relevance: Tensor) -> Tensor:
        count = int(torch.round(self.share * relevance.shape[1]))
        where = relevance.topk(count, dim=-1).indices
        where = where.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        return features.gather(1, where)


class ARRCOC(nn.Module):
    """Images (batch, 3, image, image), queries (batch, queries, dim) -> answer logits
    (batch, answers)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.backbone = arrcoc.VisionTransformer(size)
        self.knowing = KnowingModule(size.dim, size.side)
        self.balancer = arrcoc.TensionBalancer(size.dim)
        self.allocator = RelevanceAllocator(size)
        self.realizer = arrcoc.RelevanceRealizer(size)

    def relevance(self, features: Tensor, queries: Tensor) -> Tensor:
        """The relevance of each patch to the queries, from 0 to 1 (batch, patches)."""
        maps = torch.stack(self.knowing(features, queries), dim=1)
        counts = self.balancer(maps, queries.mean(1))
        return normalised((counts.unsqueeze(-1) * maps).sum(1))

    def forward(self, images: Tensor, queries: Tensor) -> Tensor:
        features = self.backbone(images)
        selected = self.allocator(features, self.relevance(features, queries))
        return self.realizer(selected, queries.mean(1))


work = synthetic.images


def make(
    size: str = "tiny",
    batch: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[ARRCOC, list[tuple[Tensor, Tensor]]]:
    """Returns the model and calls of three batch sizes, one of them 1."""
    torch.manual_seed(0)
    spec = SIZES[size]
    usual = (spec.batch, 1, spec.batch + 1, spec.batch)
    counts = synthetic.sizes_of_calls(batch, usual)
    with torch.device(device):
        model = ARRCOC(spec).to(synthetic.number_type(device))
    calls = [samples(spec, count, device) for count in counts]
    return model.train(train).requires_grad_(train), calls
