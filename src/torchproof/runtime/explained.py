"""What `torchproof.status` takes besides compiled models."""

from __future__ import annotations

from typing import Generic, TypeVar

How = TypeVar("How", covariant=True)


class Explained(Generic[How]):
    """Something of torchproof's that says itself how it ran."""

    __slots__ = ()

    def status(self) -> How:
        raise NotImplementedError
