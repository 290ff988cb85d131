"""A mixture of experts of transformers, from a config: it looks which are asked."""

import torch
from torch import nn
from transformers import SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersSparseMLP,
)


class LetterArchive:
    """Letters of one length, as the scanner of the archive numbers them."""

    def __init__(self, symbols: int, longest: int) -> None:
        self.symbols, self.longest = symbols, longest

    def letters(self, count: int) -> torch.Tensor:
        return torch.randint(5, self.symbols, (count, self.longest))


class LetterDating(nn.Module):
    """The decade in which a letter was written."""

    def __init__(self, symbols: int, decades: int = 12) -> None:
        super().__init__()
        config = SwitchTransformersConfig(
            d_model=32,
            d_ff=64,
            num_experts=4,
            num_heads=2,
            vocab_size=symbols,
            dropout_rate=0.0,
            expert_capacity=8,
        )
        self.symbols = nn.Embedding(symbols, 32)
        self.experts = SwitchTransformersSparseMLP(config)
        self.decades = nn.Linear(32, decades)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        embedded = self.symbols(symbols)
        read = embedded + self.experts(torch.tanh(embedded))
        return self.decades(read.mean(dim=1)).log_softmax(dim=-1)


def make():
    archive = LetterArchive(symbols=80, longest=10)
    model = LetterDating(archive.symbols).eval()
    return model, [(archive.letters(3),) for _ in range(2)]
