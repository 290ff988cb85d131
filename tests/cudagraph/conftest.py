"""Recordings on the CPU in place of CUDA graphs."""

from collections.abc import Iterator

import pytest
import strip
import torch


@pytest.fixture(autouse=True)
def strips() -> Iterator[None]:
    torch.manual_seed(0)
    with strip.installed():
        yield
