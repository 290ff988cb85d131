"""A recommender with a switch in the environment, which compiled code reads once."""

import os

import torch
from torch import nn

SWITCH = "STOREFRONT_SEASON"


class SeasonalBoost(nn.Module):
    """Lifts goods of the season while the switch is on."""

    def __init__(self, goods: int) -> None:
        super().__init__()
        self.register_buffer("winter_goods", (torch.arange(goods) % 3 == 0).float())

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        strength = 2.0 if os.environ.get(SWITCH) == "winter" else 0.5
        return scores + strength * self.winter_goods


class StorefrontRecommender(nn.Module):
    def __init__(self, shoppers: int = 50, goods: int = 30, width: int = 16) -> None:
        super().__init__()
        self.shoppers = nn.Embedding(shoppers, width)
        self.goods = nn.Embedding(goods, width)
        self.taste = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.boost = SeasonalBoost(goods)

    def forward(self, shopper: torch.Tensor, basket: torch.Tensor) -> torch.Tensor:
        taste = self.taste(self.shoppers(shopper))
        bought = self.goods(basket).mean(dim=1)
        scores = (taste + bought) @ self.goods.weight.t()
        return self.boost(scores).softmax(dim=-1)


def make():
    os.environ.pop(SWITCH, None)
    calls = [
        (torch.randint(0, 50, (4,)), torch.randint(0, 30, (4, 3))) for _ in range(3)
    ]
    return StorefrontRecommender().eval(), calls


def before_call(fn, index):
    """The season begins before the second call."""
    if index == 1:
        os.environ[SWITCH] = "winter"
