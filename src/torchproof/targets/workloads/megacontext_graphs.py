"""MegaContext's nets as CUDA graphs, and the one way to call them.

A graph writes its outputs, and what it saves for its backward, into the same memory at
each replay. What must hold for that to be safe:

- LensNet, GistNet and the base net are called through `region`, and through nothing
  else: inside a step, and counted there (`torchproof.step.stats()`).
- A micro-step is one step, from its first forward to the end of the backward that
  follows; each call of a session is one, with all its tokens. A step is marked once, at
  its beginning. No mark stands between a forward and its backward: it would give up
  what the forward saved, and copies of outputs cannot bring that back.
- What outlives a step is copied by `keep`, once, at one place each: the output of a
  call, here; the scores a session holds, in `Session.refocus`. The allocator gets
  numbers, the drift of the policy is computed from copies, and telemetry is counts.
- Gradients that a graph has made lie in its memory too. Those that are still there when
  a micro-step begins, as they add up over several, are copied before its mark.

Each shape is a graph of its own. So shapes are filled up to few: widths to a multiple
of `Size.grain`, a smaller batch to the full one, one block of entries to two. What
fills up is masked or cut off and changes no answer. The compiler sees sizes that vary,
and never a size of 1, which it would compile apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torchproof
from torchproof.targets.workloads import megacontext_session as session
from torchproof.targets.workloads import megacontext_step as micro_step
from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.megacontext_nets import Size

LEAST = 2  # the smallest size that is not compiled apart


def region(fn: Callable[..., Any], *varying: tuple[int, ...]) -> Callable[..., Any]:
    """A function on the nets, compiled with CUDA graphs and called in a step.

    `varying` says of each tensor it takes which dimensions vary.
    """
    compiled = torch.compile(fn, mode="reduce-overhead")

    @functools.wraps(fn)
    def call(*tensors: Tensor) -> Any:
        if not torch.compiler.is_compiling():  # else it is part of a larger graph
            for tensor, dimensions in zip(tensors, varying, strict=True):
                for dimension in dimensions:
                    synthetic.any_length(tensor, dimension=dimension)
        return torchproof.step.run(compiled, *tensors)

    return call


class MicroStep(micro_step.MicroStep):
    """The micro-step for batches of up to `batch` samples, filled up to that."""

    compiles_itself = True

    def __init__(self, size: Size, batch: int) -> None:
        super().__init__(size)
        self.batch = max(batch, LEAST)
        self._gist = region(super().gist, (0,))
        self._predict = region(super().predict, (0, 1), (0, 2), (0, 1))
        self._score = region(super().score, (0, 1), (0, 2), (0, 1), (0,))

    def forward(self, tokens: Tensor, entries: Tensor) -> micro_step.Output:
        samples, _, width = entries.shape
        with torchproof.step(parameters=self.parameters()) as begun:
            loss, nll, scores = super().forward(*self.filled(tokens, entries))
            real = nll[:samples], scores[:samples, :, :width]
            kept: micro_step.Output = begun.keep(micro_step.Output(loss, *real))
            return kept

    def filled(self, tokens: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and entries that are filler, behind those that are not."""
        missing = self.batch - len(tokens)
        if missing < 0:
            raise ValueError(f"a batch of {len(tokens)}: at most {self.batch} here")
        wider = -entries.shape[2] % self.size.grain
        rows = F.pad(entries, (0, wider, 0, 0, 0, missing), value=-1)
        return F.pad(tokens, (0, 0, 0, missing)), rows

    def gist(self, groups: Tensor) -> Tensor:
        gists: Tensor = self._gist(groups)
        return gists

    def predict(
        self, pool: Tensor, entries: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss, nll = self._predict(pool, entries, tokens)
        return loss, nll

    def score(
        self, pool: Tensor, entries: Tensor, tokens: Tensor, nll: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss, scores = self._score(pool, entries, tokens, nll)
        return loss, scores


class Session(session.Session):
    """The session, each call of which is a step."""

    compiles_itself = True

    def compile_nets(self) -> None:
        self._gist = region(super().gist, (0,), (0,))
        self._score = region(super().score, (), ())
        self._predict = region(super().predict, (), (), ())

    def forward(self, tokens: Tensor) -> Tensor:
        with torchproof.step() as begun:
            logits: Tensor = begun.keep(super().forward(tokens))
            return logits

    def keep(self, value: Tensor) -> Tensor:
        kept: Tensor = torchproof.step.keep(value)
        return kept

    def gist(self, groups: Tensor, counts: Tensor) -> Tensor:
        missing = max(LEAST - len(groups), 0)
        rows = F.pad(groups, (0, 0, 0, 0, 0, missing))
        gists: Tensor = self._gist(rows, F.pad(counts, (0, missing), value=1))
        return gists[: len(groups)]

    def score(self, pool: Tensor, entries: Tensor) -> Tensor:
        scores: Tensor = self._score(pool, entries)
        return scores

    def predict(self, pool: Tensor, entries: Tensor, last: Tensor) -> Tensor:
        logits: Tensor = self._predict(pool, entries, last)
        return logits
