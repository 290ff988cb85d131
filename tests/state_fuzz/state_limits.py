"""What is known to differ from eager, or not to be replayed, with the reason."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import torch
from state_runs import Subject

OLDER = "compile, torch before 2.12"


@functools.cache
def table() -> dict[str, dict[str, str]]:
    path = Path(__file__).resolve().parent / "limits.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def of(subject: Subject) -> frozenset[str]:
    """The mechanisms that random programs for it leave out."""
    names: set[str] = set()
    if subject.name.startswith("graph"):
        names |= {*table()["graph"]}
    if subject.name != "graph":
        names |= {*table()["compile"]}
        if _is_older():
            names |= {*table()[OLDER]}
    return frozenset(names)


def is_exact(subject: Subject) -> bool:
    """Whether each limit has to be one still: Dynamo's depend on the version."""
    return subject.name == "graph" or not _is_older()


def _is_older() -> bool:
    return torch.__version__ < (2, 12)  # type: ignore[operator]
