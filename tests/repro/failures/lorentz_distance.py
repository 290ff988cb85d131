"""A hyperbolic ranking model: Inductor's acosh is infinite for large arguments."""

import torch
from torch import nn


def lorentz_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The inner product whose first coordinate counts negative."""
    return (left[..., 1:] * right[..., 1:]).sum(-1) - left[..., 0] * right[..., 0]


class HyperboloidLift(nn.Module):
    """Takes vectors of a flat space to the hyperboloid."""

    def forward(self, flat: torch.Tensor) -> torch.Tensor:
        height = torch.sqrt(1.0 + flat.square().sum(-1, keepdim=True))
        return torch.cat([height, flat], dim=-1)


class TaxonomyRanker(nn.Module):
    """Ranks categories of goods by how far they are from a query."""

    def __init__(self, categories: int = 20, width: int = 8) -> None:
        super().__init__()
        self.categories = nn.Embedding(categories, width)
        self.encode = nn.Sequential(
            nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width), nn.LayerNorm(width)
        )
        self.lift = HyperboloidLift()
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, query: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
        encoded = self.encode(query)
        # Far-away goods: the catalogue spans many orders of magnitude.
        here = self.lift(encoded * reach)
        there = self.lift(self.categories.weight * reach[:1])
        product = -lorentz_product(here[:, None], there[None, :])
        distance = torch.acosh(product.clamp(min=1.0 + 1e-6))
        closeness = 1.0 / (1.0 + distance)
        return closeness * torch.sigmoid(self.temperature)


def make():
    model = TaxonomyRanker().eval()
    return model, [(torch.randn(6, 8), torch.full((6, 1), 1e15)) for _ in range(2)]
