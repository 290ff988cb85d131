"""The place of this process in a launch, from the variables of torch's launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One rank of a launch."""

    rank: int
    world_size: int
    local_rank: int | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Place:
        local = variables.get("LOCAL_RANK")
        return cls(
            int(variables["RANK"]),
            int(variables["WORLD_SIZE"]),
            None if local is None else int(local),
        )

    @classmethod
    def current(cls) -> Place | None:
        """The place of this process; None outside of a launch of several ranks."""
        try:
            place = cls.of(os.environ)
        except (KeyError, ValueError):
            return None
        return place if place.world_size > 1 else None
