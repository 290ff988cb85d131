"""What is known to differ from eager, or not to be replayed, with the reason."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

from state_runs import Subject


@functools.cache
def table() -> dict[str, dict[str, str]]:
    path = Path(__file__).resolve().parent / "limits.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def of(subject: Subject) -> frozenset[str]:
    """The mechanisms that random programs for it leave out."""
    if subject.name == "graph":
        return frozenset(table()["graph"])
    if subject.name == "graph of torch.compile":
        return frozenset(table()["graph"]) | frozenset(table()["compile"])
    return frozenset(table()["compile"])
