"""One line of `torchproof doctor`: whether one thing works on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from torchproof.records.mappings import JsonObject

Health = Literal["ok", "degraded", "missing"]


@dataclass(frozen=True)
class MachineCheck:
    """One thing that was tried: what was seen, what it means, and what to do."""

    group: str
    name: str
    status: Health
    value: str = ""  # what was seen: a version, a path, an error
    means: str = ""  # for the user of torchproof
    action: str = ""  # empty if there is nothing to do
    optional: bool = False  # torchproof works without it

    @property
    def is_problem(self) -> bool:
        return self.status != "ok" and not self.optional

    def to_json(self) -> JsonObject:
        return asdict(self)
