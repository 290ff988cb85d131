"""Recordings on the CPU in place of CUDA graphs."""

import pytest
import strip
import torch

from torchproof.replay import making, recording


@pytest.fixture(autouse=True)
def strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "Tape", strip.Strip)
    monkeypatch.setattr(recording, "home_of", strip.home_of)
    monkeypatch.setattr(making, "Pool", strip.StripPool)
    torch.manual_seed(0)
