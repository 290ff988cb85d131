"""MegaContext before the fixes: it compiles net by net, with static shapes.

Each edit changes the width of the working context, so LensNet recompiles up to the
limit. GistNet is called for each sample, and in a session LensNet takes the context as
an object, whose Python fields Dynamo guards. The controller holds the base model from
before compiling, so the base model runs eager. It marks a step before every GistNet
forward although earlier ones still need their backward. LensNet's scores are held
without a copy, and two of the nets are never trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchproof.targets.workloads import megacontext_nets as nets
from torchproof.targets.workloads import megacontext_session as session
from torchproof.targets.workloads import megacontext_step as step
from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.layers import Rotation
from torchproof.targets.workloads.megacontext_nets import SIZES, Context, Size, read
from torchproof.targets.workloads.megacontext_step import WorkingContext


class SessionContext(WorkingContext):
    """A working context that can turn itself into LensNet's inputs."""

    def __init__(self, size: Size, pool: Tensor, limit: int) -> None:
        super().__init__(size.block)
        self.size, self.pool, self.limit = size, pool, limit

    def read(self) -> Context:
        slots = [self.slot(entry, self.limit) for entry in self.entries]
        row = torch.tensor([[slots]], device=self.pool.device)
        return read(self.pool[None], row, self.limit, self.size)


class LensNet(nets.LensNet):
    def forward(self, context: Context | SessionContext) -> Tensor:  # type: ignore[override]
        if isinstance(context, SessionContext):
            context = context.read()
        return super().forward(*context.lens_inputs)


class Nets(nets.Nets):
    lens_net = LensNet


class Controller:
    """Holds the nets for the trainer and for sessions."""

    def __init__(self, parts: nets.Nets) -> None:
        self.base = parts.base
        self.gist_net = torch.compile(parts.gist, mode="reduce-overhead", dynamic=False)
        self.lens_net = torch.compile(parts.lens, mode="reduce-overhead", dynamic=False)

    def gists(self, groups: Tensor, counts: Tensor | None = None) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return self.gist_net(groups, counts).clone()

    def logits(self, x: Tensor, turn: Rotation, at: Tensor | None = None) -> Tensor:
        return self.base(x, turn, at)


class Trainer:
    def __init__(self, parts: nets.Nets) -> None:
        self.controller = Controller(parts)
        self.model = torch.compile(parts.base, dynamic=False)


class MicroStep(step.MicroStep):
    compiles_itself = True
    nets_type = Nets

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.trainer = Trainer(self.nets)
        self.last_scores: Tensor | None = None
        self.drift: Tensor | None = None

    def pool(self, tokens: Tensor) -> Tensor:
        return torch.cat([super(MicroStep, self).pool(row) for row in tokens.split(1)])

    def gist(self, groups: Tensor) -> Tensor:
        return self.trainer.controller.gists(groups)

    def logits(self, context: Context) -> Tensor:
        return self.trainer.controller.logits(context.x, context.turn)

    def scores(self, context: Context) -> Tensor:
        """LensNet's scores, and how far their mean moved since the last call."""
        scores = self.trainer.controller.lens_net(context)
        if self.last_scores is not None:
            self.drift = scores.detach().mean() - self.last_scores.mean()
        self.last_scores = scores.detach()
        return scores


class Session(session.Session):
    compiles_itself = True
    nets_type = Nets
    context: SessionContext

    def empty_context(self) -> SessionContext:
        return SessionContext(self.size, self.pool, self.limit)

    def compile_nets(self) -> None:
        self.trainer = Trainer(self.nets)

    def gist(self, groups: Tensor, counts: Tensor) -> Tensor:
        return self.trainer.controller.gists(groups, counts)

    def score(self, pool: Tensor, entries: Tensor) -> Tensor:
        return self.trainer.controller.lens_net(self.context)[0]

    def logits(self, context: Context, last: Tensor) -> Tensor:
        return self.trainer.controller.logits(context.x, context.turn, last)


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
            calls = step.calls(spec, length, batch, device, marked=False)
            return MicroStep(spec).to(dtype).train(), list(calls)
        session.assert_one(batch)
        return Session(spec, length, dtype), session.calls(spec, length, device)


def optimizer(model: MicroStep) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.nets.base.parameters(), lr=3e-4)
