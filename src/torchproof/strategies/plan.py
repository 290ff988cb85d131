"""What a strategy compiles in one target: plain data, found where the target is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Where in the arguments a tensor is, as (0,), ("mask",) or ("states", 1), and which of
# its sizes vary from call to call.
Varying = Mapping[tuple[int | str, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Site:
    """One thing that is compiled, or one loop over blocks of the same structure.

    `place` is an expression in which MODEL stands for the target's name: a callable, or
    with `paths` what the loop goes over.
    """

    place: str
    name: str = ""  # the class of the blocks
    paths: tuple[str, ...] = ()
    varying: Varying = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        # JSON has no tuples for keys: pairs of a way and its sizes instead.
        varying = [[[*way], [*sizes]] for way, sizes in self.varying.items()]
        plain = dataclasses.asdict(self)
        return {**plain, "paths": [*self.paths], "varying": varying}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Site:
        varying = {tuple(way): tuple(sizes) for way, sizes in plain["varying"]}
        told = {**plain, "paths": tuple(plain["paths"]), "varying": varying}
        return cls(**told)


@dataclass(frozen=True)
class Plan:
    """The sites of a target; `note` says for people what of it stays eager."""

    sites: tuple[Site, ...] = ()
    note: str | None = None

    @property
    def regions(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.paths)

    def wrong_path(self) -> str | None:
        """What is wrong with the paths of its blocks, whatever the model is."""
        seen: list[str] = []
        for path in (path for region in self.regions for path in region.paths):
            if not isinstance(path, str):
                return f"the path {path!r} of a region is no text"
            if path == "":
                return "the path '' of a region is the whole model: that is full"
            if not all(path.split(".")):
                return f"the path {path!r} of a region has an empty step"
            if path in seen:
                return f"the path {path!r} is a region twice"
            seen.append(path)
        for outer in seen:
            for inner in seen:
                if inner.startswith(f"{outer}."):
                    return f"the region {inner!r} lies within the region {outer!r}"
        return None

    def to_json(self) -> dict[str, Any]:
        return {"sites": [site.to_json() for site in self.sites], "note": self.note}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Plan:
        return cls(tuple(map(Site.from_json, plain["sites"])), plain["note"])
