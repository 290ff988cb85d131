"""A MegaContext inference session, which refocuses its working context as it grows.

Python code edits the context. LensNet and the base net take it padded to the budget, so
that each of them has one shape for every width of the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.megacontext_nets import (
    LEVELS,
    Context,
    Nets,
    Size,
    read,
)
from torchproof.targets.workloads.megacontext_step import (
    RESERVED,
    WorkingContext,
    filled,
)

STEPS = 8


@dataclass(frozen=True)
class Allocator:
    """Edits a working context by the scores of its entries or by their age."""

    budget: int
    recent: int
    threshold: float = 0.1
    most_edits: int = 4

    def refocus(self, context: WorkingContext, scores: list[float]) -> int:
        """Collapses the entries with the lowest scores, expands those with the highest.

        Returns the number of edits. At most half of `most_edits` are collapses.
        """
        block = context.block
        collapses = self.collapses(context, scores)[: self.most_edits // 2]
        gone = {place + i for place in collapses for i in range(block)}
        room = (self.budget - len(context)) // (block - 1) + len(collapses)
        expansions = [p for p in self.expansions(context, scores) if p not in gone]
        expansions = expansions[: min(room, self.most_edits - len(collapses))]
        # Edit from the end, so that earlier places stay valid.
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
        """Collapses the oldest entries until the context fits the budget."""
        while len(context) > self.budget:
            context.collapse(context.collapsible(self.recent)[0])


class Session(nn.Module):
    """New tokens (new,) -> logits (vocabulary,) for the token that follows them.

    The first call takes the prompt. The object holds the state of the session.
    """

    pool: Tensor
    nets_type = Nets

    def __init__(self, size: Size, prompt: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.size = size
        self.nets = self.nets_type(size)
        whole = size.block**LEVELS
        self.limit = -(-(prompt + STEPS * size.refocus_every) // whole) * whole
        # The smallest possible context: gists of gists, and an incomplete block at the
        # end of each level.
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
        """Clears the state: the next call takes a prompt."""
        self.pool.zero_()
        self.context = self.empty_context()
        self.unfocused = 0  # tokens since the last refocus
        self.scores: Tensor | None = None  # of the last refocus
        self.drift: Tensor | None = None  # the change of their mean

    def empty_context(self) -> WorkingContext:
        return WorkingContext(self.size.block)

    def compile_nets(self) -> None:
        """Does nothing here. A subclass compiles; the weights get their dtype later."""

    def keep(self, value: Tensor) -> Tensor:
        """A value that the session keeps between calls; a subclass copies it."""
        return value

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        if self.context.tokens + len(tokens) > self.limit:
            raise ValueError(f"a session of {self.limit} tokens is full")
        # Append a prompt as a whole, and later tokens one by one.
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
        """Computes the gists from token `first` on; the last gist may be partial."""
        block, nodes = self.size.block, self.context.tokens
        start, slots = 0, self.limit
        for _ in range(LEVELS):
            level = self.pool[start : start + slots].unflatten(0, (-1, block))
            first, stop = first // block, -(-nodes // block)
            remaining = nodes - block * torch.arange(first, stop, device=level.device)
            start, slots, nodes = start + slots, slots // block, stop
            gists = self.gist(level[first:stop], remaining.clamp(max=block))
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
        """The slots of the context, padded to the budget."""
        slots = filled(self.context.slots(self.limit), self.allocator.budget)
        return torch.tensor(slots, device=self.pool.device)

    # -- the nets, each with its pre- and postprocessing -------------------------------

    def gist(self, groups: Tensor, counts: Tensor) -> Tensor:
        return self.nets.gist(groups, counts)

    def score(self, pool: Tensor, entries: Tensor) -> Tensor:
        """LensNet's scores (budget,)."""
        context = read(pool[None], entries[None, None], self.limit, self.size)
        return self.nets.lens(*context.lens_inputs)[0]

    def predict(self, pool: Tensor, entries: Tensor, last: Tensor) -> Tensor:
        """The base net's logits (vocabulary,) after the last entry."""
        context = read(pool[None], entries[None, None], self.limit, self.size)
        return self.logits(context, last)[0]

    def logits(self, context: Context, last: Tensor) -> Tensor:
        return self.nets.base(context.x, context.turn, last)


def assert_one(batch: int | None) -> None:
    if batch not in (None, 1):
        raise ValueError(f"a session has one sequence: batch {batch} is for training")


def calls(size: Size, prompt: int, device: str) -> list[tuple[Tensor]]:
    """The calls of a session: a prompt, then the tokens of each step."""
    lengths = [prompt, *[size.refocus_every // 2] * STEPS]
    ordinary = size.vocabulary - RESERVED
    tokens = synthetic.token_ids(ordinary, 1, sum(lengths), device)[0]
    return [(piece,) for piece in tokens.split(lengths)]
