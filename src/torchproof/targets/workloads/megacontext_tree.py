"""Which entries of the tree a working context holds, and the edits that change it."""

from __future__ import annotations

from typing import NamedTuple

from torchproof.targets.workloads.megacontext_nets import LEVELS


class Entry(NamedTuple):
    """One node of the tree, counted within its level."""

    level: int
    node: int


class WorkingContext:
    """Entries that cover a sequence once, in order."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.entries: list[Entry] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, count: int) -> None:
        """Tokens that follow, each an entry of its own."""
        added = range(self.tokens, self.tokens + count)
        self.entries += [Entry(0, node) for node in added]
        self.tokens += count

    def span(self, entry: Entry) -> range:
        """The tokens an entry stands for."""
        width = self.block**entry.level
        return range(entry.node * width, (entry.node + 1) * width)

    def collapsible(self, recent: int) -> list[int]:
        """Where `block` siblings begin that one gist can stand for.

        The last `recent` tokens are left out.
        """
        found = []
        for place in range(len(self.entries) - self.block + 1):
            first, last = self.entries[place], self.entries[place + self.block - 1]
            siblings = (
                first.level < LEVELS
                and first.node % self.block == 0
                and last == (first.level, first.node + self.block - 1)
            )
            if siblings and self.span(last).stop <= self.tokens - recent:
                found.append(place)
        return found

    def collapse(self, place: int) -> None:
        """The siblings that begin here become the gist above them."""
        first = self.entries[place]
        parent = Entry(first.level + 1, first.node // self.block)
        self.entries[place : place + self.block] = [parent]

    def expand(self, place: int) -> None:
        """A gist becomes the entries it stands for."""
        gist = self.entries[place]
        first = gist.node * self.block
        self.entries[place : place + 1] = [
            Entry(gist.level - 1, node) for node in range(first, first + self.block)
        ]

    def slots(self, tokens: int) -> list[int]:
        """Indices into a pool with this many slots for tokens."""
        return [self.slot(entry, tokens) for entry in self.entries]

    def slot(self, entry: Entry, tokens: int) -> int:
        return (0, tokens, tokens + tokens // self.block)[entry.level] + entry.node
