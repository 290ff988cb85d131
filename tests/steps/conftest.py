"""Steps that are marked into a list, and counted from zero."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from torchproof.runtime.steps import step


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The marks that are made, by the thread that makes them."""
    made: list[str] = []
    monkeypatch.setattr(
        torch.compiler,
        "cudagraph_mark_step_begin",
        lambda: made.append(threading.current_thread().name),
    )
    step.reset()
    yield made
    step.reset()


@pytest.fixture
def net() -> nn.Module:
    return nn.Linear(4, 4)
