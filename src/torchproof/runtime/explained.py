"""What `torchproof.status` takes besides compiled models."""

from __future__ import annotations

from typing import Any


class Explained:
    """Something of torchproof's that says itself how it ran."""

    __slots__ = ()

    def status(self) -> Any:
        raise NotImplementedError
