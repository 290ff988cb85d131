"""The target whose facts are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchproof.targets import Loaded


@dataclass(frozen=True)
class Subject:
    """A warm target; `run` runs all its calls and returns the milliseconds."""

    loaded: Loaded
    device: str
    run: Callable[[], float]
    rebuild: Callable[[], Loaded]
    # Whether a rank wants another pass, as all ranks decide it together.
    goes_on: Callable[[bool], bool] = bool

    @property
    def count(self) -> int:
        return len(self.loaded.calls)

    @property
    def root(self) -> nn.Module | None:
        """The module that is called, directly or through a method."""
        return root_of(self.loaded.fn)


def root_of(fn: Any) -> nn.Module | None:
    """Returns the module that a callable is, or is a method of."""
    owner = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None
