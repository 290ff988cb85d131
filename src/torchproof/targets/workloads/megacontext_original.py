"""MegaContext before the fixes: it compiles net by net and runs sample by sample.

It compiles with static shapes, but each edit changes the width of the working context,
so LensNet and GistNet recompile up to the limit. In a session, LensNet takes the
context as an object, and Dynamo guards its Python fields. The controller holds the base
model from before compiling, so the base model runs eager. It marks a step before every
GistNet forward although earlier ones still need their backward, and keeps LensNet's
scores without a copy. It pads rows on the left without a mask, normalises distances
over the whole batch, and never trains two of the nets.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchproof.targets.workloads import megacontext_nets as nets
from torchproof.targets.workloads import megacontext_session as session
from torchproof.targets.workloads import megacontext_step as step
from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.layers import Rotation
from torchproof.targets.workloads.megacontext_nets import SIZES, Context, Size, read
from torchproof.targets.workloads.megacontext_step import (
    LENS_WEIGHT,
    Output,
    WorkingContext,
)


class SessionContext(WorkingContext):
    """A working context that can turn itself into LensNet's inputs."""

    def __init__(self, size: Size, pool: Tensor, limit: int) -> None:
        super().__init__(size.block)
        self.size, self.pool, self.limit = size, pool, limit

    def read(self) -> Context:
        slots = [self.slot(entry, self.limit) for entry in self.entries]
        row = torch.tensor([[slots]], device=self.pool.device)
        return read(self.pool[None], row, self.limit, self.size)

    def tensors(self) -> dict[str, Any]:
        return lens_inputs(self.read())


def lens_inputs(context: Context) -> dict[str, Any]:
    return {
        "x": context.x,
        "positions": context.positions,
        "levels": context.levels,
        "turn": context.turn,
    }


class LensNet(nets.LensNet):
    def forward(  # type: ignore[override]
        self, working_context: SessionContext | None = None, **tensors: Any
    ) -> Tensor:
        if working_context is not None:
            tensors = working_context.tensors()
        return super().forward(**tensors)

    def farthest(self, positions: Tensor) -> Tensor:
        return positions.max()


class Nets(nets.Nets):
    lens_net = LensNet


class Controller:
    """Holds the nets for the trainer and for sessions."""

    def __init__(self, parts: nets.Nets) -> None:
        self.base = parts.base
        self.gist_net = torch.compile(parts.gist, mode="reduce-overhead", dynamic=False)
        self.lens_net = torch.compile(parts.lens, mode="reduce-overhead", dynamic=False)
        self.last_scores: Tensor | None = None
        self.drift: Tensor | None = None

    def gists(self, groups: Tensor, counts: Tensor | None = None) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return self.gist_net(groups, counts).clone()

    def logits(self, x: Tensor, turn: Rotation, at: Tensor | None = None) -> Tensor:
        return self.base(x, turn, at)

    def remember(self, scores: Tensor) -> None:
        """Stores the scores, and how far their mean moved since the last call."""
        if self.last_scores is not None:
            self.drift = scores.detach().mean() - self.last_scores.mean()
        self.last_scores = scores.detach()


class Trainer:
    def __init__(self, parts: nets.Nets) -> None:
        self.controller = Controller(parts)
        self.model = torch.compile(parts.base, dynamic=False)


class MicroStep(step.MicroStep):
    """Tokens (batch, length), the plans of all samples and a width -> losses."""

    compiles_itself = True
    nets_type = Nets

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.trainer = Trainer(self.nets)

    def forward(  # type: ignore[override]
        self, tokens: Tensor, plans: list[list[WorkingContext]], width: int
    ) -> Output:
        controller = self.trainer.controller
        rows: list[Context] = []
        for sample, contexts in zip(tokens, plans, strict=True):
            rows += self.rows(sample[None], contexts, width)
        inputs = stack([lens_inputs(row) for row in rows], width)
        logits = controller.logits(inputs["x"], inputs["turn"])
        scores = controller.lens_net(**inputs | {"x": inputs["x"].detach()})
        controller.remember(scores)
        return self.losses(tokens, rows, logits, scores=scores)

    def rows(
        self, tokens: Tensor, contexts: list[WorkingContext], width: int
    ) -> list[Context]:
        """The tail of a sample (1, length) and its random working contexts."""
        length, block = tokens.shape[1], self.size.block
        levels = [self.nets.base.embedding(tokens)[0]]
        for _ in range(nets.LEVELS):
            whole = len(levels[-1]) // block * block
            groups = levels[-1][:whole].unflatten(0, (-1, block))
            levels.append(self.trainer.controller.gists(groups))
        pool = torch.cat(levels)[None]
        tail = list(range(length - width, length))
        return [
            read(pool, tokens.new_tensor([[slots]]), length, self.size)
            for slots in [tail, *(context.slots(length) for context in contexts)]
        ]

    def losses(
        self, tokens: Tensor, rows: list[Context], logits: Tensor, *, scores: Tensor
    ) -> Output:
        samples, length = tokens.shape
        of_sample = tokens.repeat_interleave(len(rows) // samples, dim=0)
        means, recents, wishes = [], [], []
        for i, row in enumerate(rows):
            width = row.x.shape[1]
            sample = of_sample[i : i + 1]
            losses, present = step.token_losses(logits[i : i + 1, -width:], sample, row)
            recent = present & step.is_recent(row, length, self.size)
            means.append(losses[present].mean())
            recents.append(losses[recent].mean())
            wishes.append(scores[i, -width:].mean())
        nll = torch.stack(recents).unflatten(0, (samples, -1))
        wish = torch.stack(wishes).unflatten(0, (samples, -1))
        loss = torch.stack(means).mean()
        loss = loss + LENS_WEIGHT * step.lens_losses(wish, nll.detach()).mean()
        return Output(loss, nll, scores.unflatten(0, (samples, -1)))


def stack(rows: list[dict[str, Any]], width: int) -> dict[str, Any]:
    """Stacks rows of any width into one batch, with zeros on the left."""

    def stacked(parts: list[Tensor], *features: int) -> Tensor:
        padding = [
            (*features, width - part.shape[-1 - len(features) // 2], 0)
            for part in parts
        ]
        return torch.cat([F.pad(*each) for each in zip(parts, padding, strict=True)])

    return {
        "x": stacked([row["x"] for row in rows], 0, 0),
        "positions": stacked([row["positions"] for row in rows]),
        "levels": stacked([row["levels"] for row in rows]),
        "turn": tuple(stacked([row["turn"][i] for row in rows], 0, 0) for i in (0, 1)),
    }


class Session(session.Session):
    """A session with the controller's nets, at the current width of the context."""

    compiles_itself = True
    nets_type = Nets
    context: SessionContext

    def empty_context(self) -> SessionContext:
        return SessionContext(self.size, self.pool, self.limit)

    def compile_nets(self) -> None:
        self.trainer = Trainer(self.nets)

    def gist(self, groups: Tensor, counts: Tensor) -> Tensor:
        return self.trainer.controller.gists(groups, counts)

    def refocus(self) -> None:
        controller = self.trainer.controller
        scores = controller.lens_net(self.context)
        controller.remember(scores)
        self.allocator.refocus(self.context, scores[0].tolist())
        self.unfocused = 0

    def next_logits(self) -> Tensor:
        context = self.context.read()
        last = torch.tensor([len(self.context) - 1], device=self.pool.device)
        return self.trainer.controller.logits(context.x, context.turn, last)[0]


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[MicroStep | Session, list[tuple[Any, ...]]]:
    """Returns the micro-step and a batch of each width, or a session and its calls."""
    torch.manual_seed(0)
    spec = SIZES[size]
    length = sequence or spec.length
    dtype = synthetic.number_type(device)
    with torch.device(device):
        if train:
            batches = step.batches(spec, length, batch, device)
            return MicroStep(spec).to(dtype).train(), list(batches)
        session.assert_one(batch)
        return Session(spec, length, dtype), session.calls(spec, length, device)


def optimizer(model: MicroStep) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.nets.base.parameters(), lr=3e-4)
