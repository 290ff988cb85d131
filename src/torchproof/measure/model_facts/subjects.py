"""What is probed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchproof.targets import Loaded


@dataclass(frozen=True)
class Subject:
    """A target that is warm, `run` a pass over its calls in milliseconds."""

    loaded: Loaded
    device: str
    run: Callable[[], float]
    made_anew: Callable[[], Loaded]

    @property
    def count(self) -> int:
        return len(self.loaded.calls)

    @property
    def root(self) -> nn.Module | None:
        """The module that is called, be it through one of its methods."""
        return root_of(self.loaded.fn)


def root_of(fn: Any) -> nn.Module | None:
    """The module that a callable is, or is a method of."""
    owner = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None
