"""The entries of a working context as nodes of a tree, and the edits that change it."""

from __future__ import annotations

from typing import NamedTuple

from torchproof.targets.workloads.megacontext_nets import LEVELS


class Entry(NamedTuple):
    """One node of the tree; `node` is its index within the level."""

    level: int
    node: int


class WorkingContext:
    """Entries that together cover a sequence exactly once, in order."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.entries: list[Entry] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, count: int) -> None:
        """Adds the next `count` tokens, each as its own entry."""
        added = range(self.tokens, self.tokens + count)
        self.entries += [Entry(0, node) for node in added]
        self.tokens += count

    def span(self, entry: Entry) -> range:
        """The tokens that an entry represents."""
        width = self.block**entry.level
        return range(entry.node * width, (entry.node + 1) * width)

    def collapsible(self, recent: int) -> list[int]:
        """The places where `block` siblings begin that one gist can replace.

        Excludes the last `recent` tokens.
        """
        places = []
        for place in range(len(self.entries) - self.block + 1):
            first, last = self.entries[place], self.entries[place + self.block - 1]
            siblings = (
                first.level < LEVELS
                and first.node % self.block == 0
                and last == (first.level, first.node + self.block - 1)
            )
            if siblings and self.span(last).stop <= self.tokens - recent:
                places.append(place)
        return places

    def collapse(self, place: int) -> None:
        """Replaces the siblings that begin here by their parent gist."""
        first = self.entries[place]
        parent = Entry(first.level + 1, first.node // self.block)
        self.entries[place : place + self.block] = [parent]

    def expand(self, place: int) -> None:
        """Replaces a gist by its child entries."""
        gist = self.entries[place]
        first = gist.node * self.block
        self.entries[place : place + 1] = [
            Entry(gist.level - 1, node) for node in range(first, first + self.block)
        ]

    def slots(self, tokens: int) -> list[int]:
        """The indices of the entries in a pool with this many token slots."""
        return [self.slot(entry, tokens) for entry in self.entries]

    def slot(self, entry: Entry, tokens: int) -> int:
        return (0, tokens, tokens + tokens // self.block)[entry.level] + entry.node
