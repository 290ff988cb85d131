"""Imported once by the fork server: what the first compilation loads is then shared."""

import contextlib
import os

# Asks NVML instead of CUDA, which cannot be used again after a fork.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
import torch._dynamo


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x + 1


if not torch.cuda.is_available():
    torch.compile(_identity, backend="eager")(torch.ones(2))
    torch._dynamo.reset()

with contextlib.suppress(ImportError):
    import transformers.modeling_utils  # noqa: F401 (half of a model's import)
