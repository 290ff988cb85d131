"""The decoder of `gpt` with FP8 weights: half the memory of bfloat16, inference only.

The weights are those of `gpt` with the same seed, quantised: one scale per output row.
Inputs of a product get one scale per token, in every call.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from torchproof.records import UserError
from torchproof.targets.workloads import gpt
from torchproof.targets.workloads.synthetic import tokens

work = tokens


def parity_bound(layers: int) -> float:
    """The largest relative error of the logits: ||fp8 - gpt|| / ||gpt||.

    The errors of the layers are independent, so that it grows with the root of their
    number. Measured are 0.010 to 0.011 times that root, for 2 to 48 layers.
    """
    return 0.016 * math.sqrt(layers)


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[gpt.GPT, list[tuple[Tensor]]]:
    """Returns the model and calls of `gpt.make`, with FP8 weights."""
    if train:
        raise UserError("FP8 weights have no gradients: use workload:gpt to train")
    return gpt.make(size, batch, sequence, device=device, fp8=True)


def served(model: gpt.GPT) -> nn.Module:
    """The text model for `loadtest`: prefill and decode with a static cache."""
    return gpt.served(model)
