"""MegaContext: a GPT that reads a mix of tokens and gists (summaries) of its past.

GistNet summarises blocks of entries. LensNet scores which entries of a working context
need more or less detail. With `train` it is a training micro-step, otherwise a session.
Both compile their nets with CUDA graphs. At each replay, a CUDA graph writes its
outputs and the tensors saved for backward into the same memory. This is safe under the
following rules:

- LensNet, GistNet and the base net are called only through `region`, inside a step,
  which counts the calls (`torchproof.step.stats()`).
- A micro-step is one step, from its first forward to the end of its backward. Each call
  of a session is one step, with all its tokens. A step is marked once, at its start.
  There is no mark between a forward and its backward: a mark would free the tensors
  saved for backward, and copies of the outputs do not replace them.
- `keep` copies each value that outlives a step, at one place: the output of a call,
  here; the scores that a session keeps, in `Session.refocus`. The allocator takes
  Python numbers, the drift uses the copies, and telemetry is only counts.
- Gradients computed by a graph are in its memory too. If gradients accumulate over
  several micro-steps, they are copied before the mark of the next one.

Each shape needs its own graph. Padding reduces the number of shapes: widths to a
multiple of `Size.grain`, a smaller batch to the full batch, one block to two. Padding
is masked or cut off, and changes no result. The compiler sees dynamic sizes, and never
a size of 1, which it would specialise on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchproof
from torchproof.targets.workloads import megacontext_session as session
from torchproof.targets.workloads import megacontext_step as micro_step
from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.megacontext_nets import SIZES, Size

LEAST = 2  # the smallest size that torch does not specialise on


def region(fn: Callable[..., Any], *varying: tuple[int, ...]) -> Callable[..., Any]:
    """Compiles a function with CUDA graphs, to be called in a step.

    `varying` lists the dynamic dimensions of each tensor argument.
    """
    compiled = torch.compile(fn, mode="reduce-overhead")

    @functools.wraps(fn)
    def call(*tensors: Tensor) -> Any:
        if not torch.compiler.is_compiling():  # otherwise part of a larger graph
            for tensor, dimensions in zip(tensors, varying, strict=True):
                for dimension in dimensions:
                    synthetic.any_length(tensor, dimension=dimension)
        return torchproof.step.run(compiled, *tensors)

    return call


class MicroStep(micro_step.MicroStep):
    """The micro-step for batches of up to `batch` samples, padded to that size."""

    compiles_itself = True

    def __init__(self, size: Size, batch: int) -> None:
        super().__init__(size)
        self.batch = max(batch, LEAST)
        self._compile("gist", (0,))
        self._compile("predict", (0, 1), (0, 2), (0, 1))
        self._compile("score", (0, 1), (0, 2), (0, 1), (0,))

    def _compile(self, method: str, *varying: tuple[int, ...]) -> None:
        setattr(self, method, region(getattr(self, method), *varying))

    def forward(self, tokens: Tensor, entries: Tensor) -> micro_step.Output:
        samples, _, width = entries.shape
        with torchproof.step(parameters=self.parameters()) as begun:
            loss, nll, scores = super().forward(*self.filled(tokens, entries))
            real = nll[:samples], scores[:samples, :, :width]
            return begun.keep(micro_step.Output(loss, *real))

    def filled(self, tokens: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Pads samples and entries at the end."""
        missing = self.batch - len(tokens)
        if missing < 0:
            raise ValueError(f"batch {len(tokens)} is larger than {self.batch}")
        wider = -entries.shape[2] % self.size.grain
        rows = F.pad(entries, (0, wider, 0, 0, 0, missing), value=-1)
        return F.pad(tokens, (0, 0, 0, missing)), rows


class Session(session.Session):
    """A session in which each call is one step."""

    compiles_itself = True

    def compile_nets(self) -> None:
        self._gist = region(super().gist, (0,), (0,))
        for method, tensors in (("score", 2), ("predict", 3)):
            varying = [()] * tensors
            setattr(self, method, region(getattr(self, method), *varying))

    def forward(self, tokens: Tensor) -> Tensor:
        with torchproof.step() as begun:
            return begun.keep(super().forward(tokens))

    def keep(self, value: Tensor) -> Tensor:
        return torchproof.step.keep(value)

    def gist(self, groups: Tensor, counts: Tensor) -> Tensor:
        missing = max(LEAST - len(groups), 0)
        rows = F.pad(groups, (0, 0, 0, 0, 0, missing))
        gists = self._gist(rows, F.pad(counts, (0, missing), value=1))
        return gists[: len(groups)]


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
    compiled: bool = True,
) -> tuple[nn.Module, list[tuple[Any, ...]]]:
    """Returns the micro-step and a batch of each width, or a session and its calls.

    Without `compiled`, it leaves torch.compile to the caller, for example to compile
    the micro-step as a whole.
    """
    torch.manual_seed(0)
    spec = SIZES[size]
    length = sequence or spec.length
    dtype = synthetic.number_type(device)
    with torch.device(device):
        if not train:
            session.assert_one(batch)
            kind = Session if compiled else session.Session
            return kind(spec, length, dtype), session.calls(spec, length, device)
        calls = micro_step.calls(spec, length, batch, device)
        if compiled:
            return MicroStep(spec, batch or spec.batch).to(dtype).train(), calls
        return micro_step.MicroStep(spec).to(dtype).train(), calls


def optimizer(step: nn.Module) -> torch.optim.Optimizer:
    """An optimizer for all three nets."""
    return torch.optim.AdamW(step.parameters(), lr=3e-4)
