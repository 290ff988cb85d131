"""Searches for the holder of a tensor look at few objects."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def small_heap() -> Iterator[None]:
    """What exists now, torch above all, holds no tensor of the test.

    `gc.get_referrers` reads all other objects of the process, which takes a second
    in a process that has loaded torch.
    """
    gc.freeze()
    yield
    gc.unfreeze()
