"""A MegaContext inference session whose working context is refocused as it grows.

The context is edited in Python; LensNet and the base net see it filled up to the
budget, so that each of them has one shape, whatever the width of the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.megacontext_nets import LEVELS, Nets, Size, read
from torchproof.targets.workloads.megacontext_step import RESERVED, filled
from torchproof.targets.workloads.megacontext_tree import WorkingContext

STEPS = 8


@dataclass(frozen=True)
class Allocator:
    """Edits a working context, by the scores of its entries or by their age."""

    budget: int
    recent: int
    threshold: float = 0.1
    most_edits: int = 4

    def refocus(self, context: WorkingContext, scores: list[float]) -> int:
        """Collapse what is scored lowest, then expand what is scored highest.

        Returns the number of edits, of which at most half are collapses.
        """
        block = context.block
        collapses = self.collapses(context, scores)[: self.most_edits // 2]
        gone = {place + i for place in collapses for i in range(block)}
        room = (self.budget - len(context)) // (block - 1) + len(collapses)
        expansions = [p for p in self.expansions(context, scores) if p not in gone]
        expansions = expansions[: min(room, self.most_edits - len(collapses))]
        # From the back, so that the places in front stay where they are.
        for place in sorted([*collapses, *expansions], reverse=True):
            if place in gone:
                context.collapse(place)
            else:
                context.expand(place)
        return len(collapses) + len(expansions)

    def collapses(self, context: WorkingContext, scores: list[float]) -> list[int]:
        means = {
            place: sum(scores[place : place + context.block]) / context.block
            for place in context.collapsible(self.recent)
        }
        return sorted(
            (p for p in means if means[p] < -self.threshold), key=means.__getitem__
        )

    def expansions(self, context: WorkingContext, scores: list[float]) -> list[int]:
        places = [
            place
            for place, entry in enumerate(context.entries)
            if entry.level > 0 and scores[place] > self.threshold
        ]
        return sorted(places, key=scores.__getitem__, reverse=True)

    def shrink(self, context: WorkingContext) -> None:
        """Collapse the oldest entries until the budget holds."""
        while len(context) > self.budget:
            context.collapse(context.collapsible(self.recent)[0])


class Session(nn.Module):
    """New tokens (new,) -> logits (vocabulary,) for the token that follows them.

    The first call takes the prompt. The state of the session lives in the object.
    """

    pool: Tensor

    def __init__(self, size: Size, prompt: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.size = size
        self.nets = Nets(size)
        whole = size.block**LEVELS
        self.limit = -(-(prompt + STEPS * size.refocus_every) // whole) * whole
        # The least a context can shrink to: gists of gists, and at the end of each
        # level a block that is not complete.
        least = self.limit // whole + (LEVELS + 1) * size.block + size.recent
        budget = max(int(0.75 * prompt), least)
        self.allocator = Allocator(budget, size.recent)
        slots = sum(self.limit // size.block**level for level in range(LEVELS + 1))
        pool = torch.zeros(slots, size.dim, dtype=dtype)
        self.register_buffer("pool", pool, persistent=False)
        self.restart()
        self.compile_nets()
        self.to(dtype).eval()

    def restart(self) -> None:
        """Forget everything: the next call takes a prompt."""
        self.pool.zero_()
        self.context = self.empty_context()
        self.unfocused = 0  # tokens since the last look at the scores
        self.scores: Tensor | None = None  # of the last look
        self.drift: Tensor | None = None  # of their mean, since the look before

    def empty_context(self) -> WorkingContext:
        return WorkingContext(self.size.block)

    def compile_nets(self) -> None:
        """Nothing, here; called before the weights get their type."""

    def keep(self, value: Tensor) -> Tensor:
        """What is held from one call to the next."""
        return value

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        if self.context.tokens + len(tokens) > self.limit:
            raise ValueError(f"a session of {self.limit} tokens is full")
        # A prompt is taken in whole, what follows it token by token.
        for piece in tokens.split(1) if self.context.tokens else [tokens]:
            self.append(piece)
            if self.unfocused >= self.size.refocus_every:
                self.refocus()
        return self.next_logits()

    def append(self, tokens: Tensor) -> None:
        first = self.context.tokens
        self.context.append(len(tokens))
        self.pool[first : self.context.tokens] = self.nets.base.embedding(tokens)
        self.summarise(first)
        self.allocator.shrink(self.context)
        self.unfocused += len(tokens)

    def summarise(self, first: int) -> None:
        """Make the gists over the tokens from `first` on; the last may be partial."""
        block, nodes = self.size.block, self.context.tokens
        start, slots = 0, self.limit
        for _ in range(LEVELS):
            level = self.pool[start : start + slots].unflatten(0, (-1, block))
            first, stop = first // block, -(-nodes // block)
            left = nodes - block * torch.arange(first, stop, device=level.device)
            start, slots, nodes = start + slots, slots // block, stop
            gists = self.gist(level[first:stop], left.clamp(max=block))
            self.pool[start + first : start + stop] = gists

    def refocus(self) -> None:
        scores = self.score(self.pool, self.entries())[: len(self.context)]
        scores, before = self.keep(scores), self.scores
        self.drift = None if before is None else scores.mean() - before.mean()
        self.scores = scores
        self.allocator.refocus(self.context, scores.tolist())
        self.unfocused = 0

    def next_logits(self) -> Tensor:
        last = torch.tensor([len(self.context) - 1], device=self.pool.device)
        return self.predict(self.pool, self.entries(), last)

    def entries(self) -> Tensor:
        """The slots of the context, filled up to the budget."""
        slots = filled(self.context.slots(self.limit), self.allocator.budget)
        return torch.tensor(slots, device=self.pool.device)

    # -- the nets, each with what is computed around it --------------------------------

    def gist(self, groups: Tensor, counts: Tensor) -> Tensor:
        gists: Tensor = self.nets.gist(groups, counts)
        return gists

    def score(self, pool: Tensor, entries: Tensor) -> Tensor:
        """LensNet's scores (budget,)."""
        context = read(pool[None], entries[None, None], self.limit, self.size)
        x, positions, levels = context.x, context.positions, context.levels
        return self.nets.lens(x, positions, levels, context.turn)[0]

    def predict(self, pool: Tensor, entries: Tensor, last: Tensor) -> Tensor:
        """The base net's logits (vocabulary,) behind the last entry."""
        context = read(pool[None], entries[None, None], self.limit, self.size)
        return self.nets.base(context.x, context.turn, last)[0]


def assert_one(batch: int | None) -> None:
    if batch not in (None, 1):
        raise ValueError(f"a session has one sequence: batch {batch} is for training")


def calls(size: Size, prompt: int, device: str) -> list[tuple[Tensor]]:
    """A prompt and the tokens of the steps after it."""
    lengths = [prompt, *[size.refocus_every // 2] * STEPS]
    ordinary = size.vocabulary - RESERVED
    tokens = synthetic.token_ids(ordinary, 1, sum(lengths), device)[0]
    return [(piece,) for piece in tokens.split(lengths)]
