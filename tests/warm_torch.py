"""Imported once by the fork server: what the first compilation loads is then shared."""

import torch


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x + 1


torch.compile(_identity, backend="eager")(torch.ones(2))
torch._dynamo.reset()
