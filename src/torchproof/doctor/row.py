"""A row of the doctor's tables: what is tried, what its failure means, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torchproof.records import MachineCheck
from torchproof.records.machine_check import Health


class Problem(Exception):
    """What was seen instead; `changes` replace fields of the row."""

    def __init__(self, value: str, **changes: Any) -> None:
        super().__init__(value)
        self.changes = {"value": value, **changes}


@dataclass(frozen=True)
class Row:
    """`tried` returns what was seen, or checks of its own; it raises if it fails."""

    group: str
    name: str
    tried: Callable[..., str | Iterable[MachineCheck]]
    means: str  # if it fails
    action: str = ""
    status: Health = "missing"
    optional: bool = False
    fine: str = ""  # what it means that it works

    def checks(self, *arguments: Any) -> list[MachineCheck]:
        try:
            seen = self.tried(*arguments)
            if not isinstance(seen, str):
                return [*seen]
        except Problem as problem:
            return [self.failed(**problem.changes)]
        except Exception as error:
            return [self.failed(f"{type(error).__name__}: {error}".strip())]
        return [MachineCheck(self.group, self.name, "ok", seen, self.fine)]

    def failed(self, value: str, **changes: Any) -> MachineCheck:
        fields = {
            "status": self.status,
            "means": self.means,
            "action": self.action,
            "optional": self.optional,
            **changes,
        }
        return MachineCheck(self.group, self.name, value=value, **fields)
