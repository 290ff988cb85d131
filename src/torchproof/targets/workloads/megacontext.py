"""MegaContext: a GPT that reads a mix of tokens and gists (summaries) of its past.

GistNet summarises blocks of entries. LensNet scores which entries of a working context
need more or less detail. With `train` it is a training micro-step, otherwise a session.
Both compile their nets with CUDA graphs, by the rules in `megacontext_graphs`.
"""

from __future__ import annotations

from typing import Any

import torch

from torchproof.targets.workloads import megacontext_graphs as graphs
from torchproof.targets.workloads import megacontext_session as session
from torchproof.targets.workloads import megacontext_step as step
from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.megacontext_nets import SIZES
from torchproof.targets.workloads.megacontext_step import optimizer

__all__ = ["SIZES", "make", "optimizer"]


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
    compile_training: bool = True,
    compile_inference: bool = True,
) -> tuple[step.MicroStep | session.Session, list[tuple[Any, ...]]]:
    """Returns the micro-step and a batch of each width, or a session and its calls.

    Set `compile_training` or `compile_inference` to False to turn the workload's own
    torch.compile off, for example to compile the micro-step as a whole.
    """
    torch.manual_seed(0)
    spec = SIZES[size]
    length = sequence or spec.length
    dtype = synthetic.number_type(device)
    model: step.MicroStep | session.Session
    with torch.device(device):
        if train:
            if compile_training:
                model = graphs.MicroStep(spec, batch or spec.batch)
            else:
                model = step.MicroStep(spec)
            model = model.to(dtype).train()
            return model, step.calls(spec, length, batch, device)
        session.assert_one(batch)
        kind = graphs.Session if compile_inference else session.Session
        return kind(spec, length, dtype), session.calls(spec, length, device)
