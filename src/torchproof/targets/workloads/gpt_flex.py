"""The decoder of `gpt` with FlexAttention and a sliding window.

FlexAttention has no backward on the CPU, so training on the CPU uses a dense mask.
"""

from __future__ import annotations

from torch import Tensor

from torchproof.targets.workloads import gpt
from torchproof.targets.workloads.synthetic import tokens

work = tokens


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
    deferred: bool = False,
) -> tuple[gpt.GPT, list[tuple[Tensor]]]:
    """Returns the model and calls of `gpt.make`, with a window for attention."""
    window = 64 if size == "tiny" else 512
    return gpt.make(
        size,
        batch,
        sequence,
        device=device,
        train=train,
        attention="flex",
        window=window,
        deferred=deferred,
    )
