"""The training micro-step of MegaContext, from tokens to both losses.

Python code decides in advance what each working context collapses, and passes it as
indices. So the step takes only tensors and can be one graph.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.megacontext_nets import (
    LEVELS,
    Context,
    Nets,
    Size,
    read,
)

RESERVED = 9  # ids at the end of the vocabulary
LENS_WEIGHT, RANK_WEIGHT, BUDGET_WEIGHT = 0.1, 0.5, 0.1
MARGIN = 0.1


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


class Output(NamedTuple):
    loss: Tensor
    nll: Tensor  # (batch, contexts), of the recent tokens
    scores: Tensor  # (batch, contexts, width)


class MicroStep(nn.Module):
    """Tokens (batch, length), working contexts (batch, contexts, width) -> losses.

    A sample whose contexts are all padding adds nothing to the loss.
    """

    nets_type = Nets

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.nets = self.nets_type(size)

    def forward(self, tokens: Tensor, entries: Tensor) -> Output:
        pool = self.pool(tokens)
        loss, nll = self.predict(pool, entries, tokens)
        # LensNet's loss does not train the gists.
        lens_loss, scores = self.score(pool.detach(), entries, tokens, nll.detach())
        return Output(loss + LENS_WEIGHT * lens_loss, nll, scores)

    def pool(self, tokens: Tensor) -> Tensor:
        """Embeddings, gists and gists of gists, with one GistNet call per level."""
        level = self.nets.base.embedding(tokens)
        levels = [level]
        for _ in range(LEVELS):
            level = self.gists(level)
            levels.append(level)
        return torch.cat(levels, dim=1)

    def gists(self, level: Tensor) -> Tensor:
        """The gists (batch, nodes / block, dim) of all samples of one level."""
        block, whole = self.size.block, level.shape[1] // self.size.block
        groups = level[:, : whole * block].unflatten(1, (whole, block))
        return self.gist(groups.flatten(0, 1)).unflatten(0, groups.shape[:2])

    # -- the nets, alone and with their pre- and postprocessing ------------------------

    def gist(self, groups: Tensor) -> Tensor:
        return self.nets.gist(groups)

    def logits(self, context: Context) -> Tensor:
        return self.nets.base(context.x, context.turn)

    def scores(self, context: Context) -> Tensor:
        return self.nets.lens(*context.lens_inputs)

    def predict(
        self, pool: Tensor, entries: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The base net's loss, and that of the recent tokens (batch, contexts)."""
        length = tokens.shape[1]
        context = read(pool, entries, length, self.size)
        logits = self.logits(context)
        losses, present = token_losses(logits, tokens, context)
        nll = mean_where(present & is_recent(context, length, self.size), losses)
        return mean_of(mean_where(present, losses), context.present), nll

    def score(
        self, pool: Tensor, entries: Tensor, tokens: Tensor, nll: Tensor
    ) -> tuple[Tensor, Tensor]:
        """LensNet's loss, and its scores (batch, contexts, width)."""
        context = read(pool, entries, tokens.shape[1], self.size)
        scores = self.scores(context).unflatten(0, entries.shape[:2])
        wish = mean_where(context.present, scores)
        return mean_of(lens_losses(wish, nll), context.present), scores


def token_losses(
    logits: Tensor, tokens: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """The loss at each entry for the token after its span, and where that token exists.

    Both have the shape (batch, contexts, width).
    """
    ends, length = context.ends, tokens.shape[1]
    targets = tokens.gather(1, ends.clamp(max=length - 1).flatten(1)).flatten()
    losses = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    return losses.view(ends.shape), context.present & (ends < length)


def is_recent(context: Context, length: int, size: Size) -> Tensor:
    """The entries at the end of a sequence, which every working context contains."""
    return context.ends > length - size.recent


def mean_where(keep: Tensor, values: Tensor) -> Tensor:
    """The mean over the last dimension of the values where `keep` is true."""
    masked = torch.where(keep, values, 0.0)
    return masked.sum(dim=-1) / keep.sum(dim=-1).clamp(min=1)


def mean_of(values: Tensor, present: Tensor) -> Tensor:
    """The mean over samples, or over contexts, without those that are all padding.

    The values of padding must be zero.
    """
    real = present.flatten(values.dim()).any(dim=-1)
    return values.sum() / real.sum().clamp(min=1)


def lens_losses(wish: Tensor, nll: Tensor) -> Tensor:
    """LensNet's loss for each sample, from pairs of its contexts (batch, contexts).

    Of two contexts of a sample, the one that predicts worse should ask for more detail
    (`wish`): a preference loss weighted by how much worse it is, and a margin loss. A
    third term keeps the wishes near zero on average, because the budget is fixed.
    """
    worse = (nll[:, :, None] - nll[:, None, :]).clamp(min=0)
    ahead = wish[:, :, None] - wish[:, None, :]
    total = worse.sum(dim=(1, 2)).clamp(min=1e-6)
    preference = (worse * F.softplus(-ahead)).sum(dim=(1, 2)) / total
    pairs = worse > 0
    short = torch.where(pairs, F.relu(MARGIN - ahead), 0.0).sum(dim=(1, 2))
    rank = short / pairs.sum(dim=(1, 2)).clamp(min=1)
    budget = wish.square().mean(dim=1)
    return preference + RANK_WEIGHT * rank + BUDGET_WEIGHT * budget


# -- the inputs of a micro-step --------------------------------------------------------


def widths(size: Size, length: int) -> list[int]:
    """Widths from 9/10 to 3/4 of a sequence; each edit removes `block - 1` entries."""
    edit = size.block - 1
    fewest, most = (-(-(length - int(share * length)) // edit) for share in (0.9, 0.75))
    return [length - edit * edits for edits in range(fewest, most + 1)]


def plan(
    size: Size, length: int, width: int, draw: random.Random
) -> list[WorkingContext]:
    """Random working contexts of one sample, at most `width` long."""
    contexts = []
    for _ in range(size.variants):
        context = WorkingContext(size.block)
        context.append(length)
        if draw.random() < size.level_2_share:
            collapse_some_spans(context, size, draw)
        edits = -(-(len(context) - width) // (size.block - 1))
        groups = context.collapsible(size.recent)
        groups = [place for place in groups if context.entries[place].level == 0]
        if edits > len(groups):
            raise ValueError(
                f"sequence {length}: too short for contexts of {width} entries, because"
                f" {size.recent} recent tokens are never collapsed"
            )
        for place in sorted(draw.sample(groups, max(edits, 0)), reverse=True):
            context.collapse(place)
        contexts.append(context)
    return contexts


def collapse_some_spans(
    context: WorkingContext, size: Size, draw: random.Random
) -> None:
    """Collapses random spans of a context of tokens to gists of gists."""
    whole = size.block**2
    spans = range(len(context) // whole - 1)
    chosen = draw.sample(spans, draw.randint(0, len(spans)))
    for span in sorted(chosen, reverse=True):
        first = span * whole
        for child in range(size.block):
            context.collapse(first + child)
        context.collapse(first)


def pack(plans: list[list[WorkingContext]], length: int, width: int) -> Tensor:
    """Slots (batch, contexts, width); the first context of a sample is its tail."""
    tail = list(range(length - width, length))
    rows = [
        [tail, *(filled(context.slots(length), width) for context in contexts)]
        for contexts in plans
    ]
    return torch.tensor(rows)


def filled(slots: list[int], width: int) -> list[int]:
    return slots + [-1] * (width - len(slots))


def calls(
    size: Size, length: int, batch: int | None, device: str, *, marked: bool = True
) -> list[tuple[Tensor, Tensor]]:
    """The inputs of a micro-step of each width, and of the first width with batch 1.

    If `marked`, batch and width are dynamic.
    """
    draw = random.Random(0)
    found = []
    every = widths(size, length)
    shapes = [*((width, size.batch) for width in every), (every[0], 1)]
    for width, usual in shapes:
        samples = batch or usual
        plans = [plan(size, length, width, draw) for _ in range(samples)]
        ordinary = size.vocabulary - RESERVED
        tokens = synthetic.token_ids(ordinary, samples, length, device)
        entries = pack(plans, length, width).to(device)
        if marked:
            synthetic.any_batch(tokens, entries)
            synthetic.any_length(tokens)
            synthetic.any_length(entries, dimension=2)
        found.append((tokens, entries))
    return found
