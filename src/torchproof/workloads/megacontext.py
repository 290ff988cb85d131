"""MegaContext: a GPT that reads a focused mix of tokens and gists of its past.

GistNet sums up blocks of entries, LensNet scores which entries of a working context
deserve more or less detail. Trained, it is a micro-step in one graph; else a session
that compiles each net once, for every width of its working context.
"""

from __future__ import annotations

from typing import Any

import torch

from torchproof.workloads import megacontext_session as session
from torchproof.workloads import megacontext_step as step
from torchproof.workloads import synthetic
from torchproof.workloads.megacontext_nets import SIZES
from torchproof.workloads.megacontext_step import optimizer

__all__ = ["SIZES", "make", "optimizer"]


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[step.MicroStep | session.Session, list[tuple[Any, ...]]]:
    """The micro-step and a batch of each width; or a session, without a batch."""
    torch.manual_seed(0)
    spec = SIZES[size]
    length = sequence or spec.length
    dtype = synthetic.number_type(device)
    with torch.device(device):
        if train:
            micro_step = step.MicroStep(spec).to(dtype).train()
            return micro_step, step.calls(spec, length, batch, device)
        session.assert_one(batch)
        one = session.Session(spec, length, dtype)
        return one, session.calls(spec, length, device)
