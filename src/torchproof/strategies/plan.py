"""A `Plan`: what a strategy compiles in one target, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchproof.records import JsonObject

# The path of a tensor in the arguments, such as (0,), ("mask",) or ("states", 1), and
# its dimensions that vary from call to call.
Varying = Mapping[tuple[int | str, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Site:
    """A callable that is compiled, or a loop over blocks of the same structure.

    `place` is a Python expression in which MODEL stands for the target's name: the
    callable or, with `paths`, the iterable of the loop.
    """

    place: str
    name: str = ""  # the class of the blocks
    paths: tuple[str, ...] = ()
    varying: Varying = field(default_factory=dict, hash=False)

    def to_json(self) -> JsonObject:
        # JSON has no tuples as keys: write pairs of a path and its sizes instead.
        varying = [[[*path], [*sizes]] for path, sizes in self.varying.items()]
        plain = dataclasses.asdict(self)
        return {**plain, "paths": [*self.paths], "varying": varying}

    @classmethod
    def from_json(cls, plain: JsonObject) -> Site:
        varying = {tuple(path): tuple(sizes) for path, sizes in plain["varying"]}
        paths = tuple(plain["paths"])
        return cls(**{**plain, "paths": paths, "varying": varying})


@dataclass(frozen=True)
class Plan:
    """The sites of a target; `note` says in words what stays eager."""

    sites: tuple[Site, ...] = ()
    note: str | None = None

    @property
    def regions(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.paths)

    def path_problem(self) -> str | None:
        """Why the paths of the blocks are invalid for any model, or None."""
        paths: list[str] = []
        for path in (path for region in self.regions for path in region.paths):
            if not isinstance(path, str):
                return f"the path {path!r} of a region is not a string"
            if path == "":
                return "the path '' of a region is the whole model: use strategy full"
            if not all(path.split(".")):
                return f"the path {path!r} of a region has an empty part"
            if path in paths:
                return f"the path {path!r} is a region twice"
            paths.append(path)
        for outer in paths:
            for inner in paths:
                if inner.startswith(f"{outer}."):
                    return f"the region {inner!r} is inside the region {outer!r}"
        return None

    def to_json(self) -> JsonObject:
        return {"sites": [site.to_json() for site in self.sites], "note": self.note}

    @classmethod
    def from_json(cls, plain: JsonObject) -> Plan:
        return cls(tuple(map(Site.from_json, plain["sites"])), plain["note"])
