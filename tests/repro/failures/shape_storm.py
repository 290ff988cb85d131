"""A tagger for sentences of every length, compiled for each of them anew."""

import torch
from torch import nn


class CharacterEncoder(nn.Module):
    """Convolutions over the letters of a sentence."""

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.narrow = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.wide = nn.Conv1d(width, width, kernel_size=5, padding=2)

    def forward(self, sentence: torch.Tensor) -> torch.Tensor:
        embedded = self.letters(sentence).transpose(1, 2)
        return (self.narrow(embedded).relu() + self.wide(embedded).relu()).transpose(
            1, 2
        )


class DialectTagger(nn.Module):
    def __init__(self, letters: int = 60, width: int = 20, tags: int = 7) -> None:
        super().__init__()
        self.encoder = CharacterEncoder(letters, width)
        self.normalise = nn.LayerNorm(width)
        self.tags = nn.Linear(width, tags)
        self.prior = nn.Parameter(torch.zeros(tags))

    def attend(self, hidden: torch.Tensor) -> torch.Tensor:
        weights = (hidden @ hidden.transpose(1, 2) / hidden.shape[-1] ** 0.5).softmax(
            dim=-1
        )
        return weights @ hidden

    def forward(self, sentence: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(sentence)
        hidden = self.normalise(hidden + self.attend(hidden))
        return (self.tags(hidden) + self.prior).log_softmax(dim=-1)


def make():
    lengths = range(5, 17)
    calls = [(torch.randint(0, 60, (2, length)),) for length in lengths]
    return DialectTagger().eval(), calls
