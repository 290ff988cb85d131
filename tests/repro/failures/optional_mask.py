"""An encoder whose mask is sometimes left out: one more graph for each case."""

import torch
from torch import nn


class MaskedAttention(nn.Module):
    """One head; a mask of ones and zeros says what may be looked at."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(
        self, sequence: torch.Tensor, visible: torch.Tensor | None
    ) -> torch.Tensor:
        scores = self.query(sequence) @ self.key(sequence).transpose(-1, -2)
        scores = scores / sequence.shape[-1] ** 0.5
        if visible is not None:
            scores = scores.masked_fill(visible[:, None, :] == 0, float("-inf"))
        return scores.softmax(dim=-1) @ self.value(sequence)


class ClinicNoteEncoder(nn.Module):
    """A vector for a note; notes from the archive come without a mask."""

    def __init__(self, words: int = 100, width: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.attention = MaskedAttention(width)
        self.forwarding = nn.Sequential(
            nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)
        )

    def forward(
        self, words: torch.Tensor, visible: torch.Tensor | None = None
    ) -> torch.Tensor:
        embedded = self.words(words)
        attended = embedded + self.attention(embedded, visible)
        return (attended + self.forwarding(attended)).mean(dim=1)


def make():
    calls = []
    for index in range(4):
        note = {"words": torch.randint(0, 100, (3, 9))}
        if index % 2:
            note["visible"] = torch.ones(3, 9, dtype=torch.int64)
        calls.append(note)
    return ClinicNoteEncoder().eval(), calls
