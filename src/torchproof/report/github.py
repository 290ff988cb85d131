from __future__ import annotations

from torchproof.records import Run


def render(run: Run) -> str:
    raise NotImplementedError
