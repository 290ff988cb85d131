"""What tests of the runtime have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Nothing is compiled yet, and random numbers are the same ones each time."""
    torch._dynamo.reset()
    # `torch.manual_seed` keeps a stack trace for each accelerator that is not there.
    torch.default_generator.manual_seed(0)
    yield
    torch._dynamo.reset()
