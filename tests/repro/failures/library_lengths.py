"""A model of transformers, made from a config, that reads lengths as Python numbers."""

import torch
from torch import nn
from transformers import XLMConfig, XLMModel


class LetterArchive:
    """Letters of different lengths, as the scanner of the archive numbers them."""

    def __init__(self, symbols: int, longest: int) -> None:
        self.symbols, self.longest = symbols, longest

    def lengths(self, count: int) -> torch.Tensor:
        return torch.randint(2, self.longest + 1, (count,))

    def letters(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        symbols = torch.randint(5, self.symbols, (count, self.longest))
        return symbols, self.lengths(count)


class LetterDating(nn.Module):
    """The decade in which a letter was written."""

    def __init__(self, symbols: int, decades: int = 12) -> None:
        super().__init__()
        config = XLMConfig(
            vocab_size=symbols,
            emb_dim=32,
            n_layers=2,
            n_heads=2,
            max_position_embeddings=64,
            dropout=0.0,
            attention_dropout=0.0,
        )
        self.reader = XLMModel(config)
        self.decades = nn.Linear(32, decades)

    def forward(self, symbols: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        read = self.reader(input_ids=symbols, lengths=lengths).last_hidden_state
        return self.decades(read[:, 0]).log_softmax(dim=-1)


def make():
    archive = LetterArchive(symbols=80, longest=10)
    model = LetterDating(archive.symbols).eval()
    return model, [archive.letters(3) for _ in range(2)]
