"""Question answering on the most relevant patches of an image (ViT-B/16 in `base`).

The model weighs three maps of the patches for the query, selects the top patches, and
computes the answer from them. The forward makes a hard selection. The backward uses the
gradient of a soft one: the mean of all patches weighted by relevance. The loss trains
the scorers and the balancer, also on patches that were not selected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.arrcoc_scorers import TINY, KnowingModule, normalised


@dataclass(frozen=True)
class Size:
    """The dimensions of backbone and head, and the number of selected patches."""

    image: int
    dim: int
    layers: int
    heads: int
    kept: int
    answers: int
    batch: int
    patch: int = 16

    @property
    def side(self) -> int:
        return self.image // self.patch


SIZES = {
    "tiny": Size(image=64, dim=64, layers=2, heads=4, kept=6, answers=16, batch=4),
    "base": Size(
        image=224, dim=768, layers=12, heads=12, kept=64, answers=1000, batch=32
    ),
}


class Block(nn.Module):
    """A pre-norm transformer block on (batch, tokens, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.attention_norm = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def attend(self, x: Tensor) -> Tensor:
        # (batch, tokens, 3 * dim) -> 3 x (batch, heads, tokens, head_dim)
        qkv = self.qkv(x).unflatten(-1, (3, -1, self.head_dim))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class VisionTransformer(nn.Module):
    """Images (batch, 3, image, image) -> features of patches (batch, patches, dim)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.patch = size.patch
        self.embedding = nn.Linear(3 * size.patch**2, size.dim)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size.dim))
        self.positions = nn.Parameter(torch.zeros(1, size.side**2 + 1, size.dim))
        self.blocks = nn.ModuleList(
            Block(size.dim, size.heads) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.dim, eps=1e-6)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def pixels(self, images: Tensor) -> Tensor:
        """The pixels of each patch as one row (batch, patches, 3 * patch * patch).

        Followed by a Linear, this equals a convolution with stride = kernel size. For a
        convolution with an unbacked batch, Inductor assumes the wrong output strides.
        """
        x = images.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embedding(self.pixels(images))
        class_token = self.class_token.expand(patches.shape[0], -1, -1)
        x = torch.cat((class_token, patches), dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 1:]


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
        where = relevance.topk(self.kept, dim=-1).indices
        where = where.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        selected = features.gather(1, where)  # `take_along_dim` needs a static batch
        share = relevance.softmax(-1).unsqueeze(1).to(features.dtype)
        blend = share @ features.detach()  # (batch, 1, dim)
        return selected + (blend - blend.detach())


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

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.backbone = VisionTransformer(size)
        self.knowing = KnowingModule(size.dim, size.side)
        self.balancer = TensionBalancer(size.dim)
        self.allocator = RelevanceAllocator(size)
        self.realizer = RelevanceRealizer(size)

    def relevance(self, features: Tensor, queries: Tensor) -> Tensor:
        """The relevance of each patch to the queries, from 0 to 1 (batch, patches)."""
        maps = torch.stack(self.knowing(features, queries), dim=1)
        counts = self.balancer(maps, queries.mean(1))
        return normalised((counts.unsqueeze(-1) * maps).sum(1))

    def forward(self, images: Tensor, queries: Tensor) -> Tensor:
        features = self.backbone(images)
        selected = self.allocator(features, self.relevance(features, queries))
        return self.realizer(selected, queries.mean(1))


def samples(size: Size, batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Random images (batch, 3, image, image) and queries (batch, 1, dim)."""
    dtype = synthetic.number_type(device)
    with torch.device(device):
        images = torch.rand(batch, 3, size.image, size.image, dtype=dtype)
        return images, torch.randn(batch, 1, size.dim, dtype=dtype)


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
    for images, queries in calls:
        synthetic.any_batch(images, queries)
    return model.train(train).requires_grad_(train), calls
