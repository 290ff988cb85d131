"""megacontext with one of its rules broken: what `check` must not let pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchproof.targets.workloads import megacontext, megacontext_original

CALLS = 4
Made = tuple[Any, list[Any]]


class MarkedAtEachCall(megacontext.MicroStep):
    """GistNet is compiled by itself, and a step marked before each of its calls."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._alone = torch.compile(self.compiled_gist, mode="reduce-overhead")
        self.gist = self.marked_gist

    def compiled_gist(self, groups: Tensor) -> Tensor:
        return self.nets.gist(groups)

    def marked_gist(self, groups: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return self._alone(groups).clone()


class SkippedByTorch(megacontext.MicroStep):
    """GistNet's region changes one of its inputs: torch does not capture it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._counted = megacontext.region(self.counted_gist, (0,), ())
        self.seen: Tensor | None = None
        self.gist = self.skipped_gist

    def counted_gist(self, groups: Tensor, seen: Tensor) -> Tensor:
        seen.add_(1)
        return self.nets.gist(groups)

    def skipped_gist(self, groups: Tensor) -> Tensor:
        if self.seen is None:
            self.seen = torch.zeros(1, device=groups.device)
        return self._counted(groups, self.seen)


class HeldWithoutACopy(megacontext.Session):
    """Scores are held from one look to the next as the graph wrote them."""

    def keep(self, value: Tensor) -> Tensor:
        return value


def make_marked() -> Made:
    size = megacontext.SIZES["tiny"]
    _, calls = megacontext.make(train=True)
    return MarkedAtEachCall(size, size.batch), calls[:CALLS]


def make_skipped() -> Made:
    size = megacontext.SIZES["tiny"]
    _, calls = megacontext.make(train=True)
    return SkippedByTorch(size, size.batch), calls[:CALLS]


def make_held() -> Made:
    size = megacontext.SIZES["tiny"]
    _, calls = megacontext.make()
    return HeldWithoutACopy(size, size.length, torch.float32), calls[:CALLS]


def make_original_step() -> Made:
    model, calls = megacontext_original.make(train=True)
    return model, calls[:2]


def make_original_session() -> Made:
    """Its third call looks again, at the scores of the first."""
    model, calls = megacontext_original.make()
    return model, calls[:3]


def make_trained() -> Made:
    """The same, with no rule broken."""
    model, calls = megacontext.make(train=True)
    return model, calls[:CALLS]
