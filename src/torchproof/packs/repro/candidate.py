"""A program that may show a symptom, and what running it gave."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Form = Literal["graph", "frame", "program"]


@dataclass(frozen=True)
class Settings:
    """How a repro compiles and runs what its candidate makes."""

    compile: Mapping[str, Any] = field(default_factory=dict, hash=False)
    as_written: bool = False  # the candidate does its own compiling
    train: bool = False
    device: str = "cpu"
    seed: int = 0
    limit_s: float = 120.0  # of one run; longer is a hang

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Candidate:
    """Source that needs torch alone and defines `make() -> (fn, calls)`.

    It may define `before_call(fn, index)` too. `size` counts what can be taken away:
    the nodes of a graph, the statements of a program.
    """

    form: Form
    source: str
    about: str  # what it holds of the user's, one sentence
    size: int
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)  # beside it
    origin: str = ""  # compile id of a graph, place of a frame
    # What it was written from, as JSON; for changing it, never part of a pack.
    record: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        files = {k: base64.b64encode(v).decode() for k, v in self.files.items()}
        return {**vars(self), "files": files, "record": dict(self.record)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Candidate:
        files = {k: base64.b64decode(v) for k, v in plain["files"].items()}
        return cls(**{**plain, "files": files})


@dataclass(frozen=True)
class Outcome:
    """What a run of a candidate showed, in the words of its judge."""

    verdict: Literal["same", "other", "none", "timeout", "broken"]
    text: str  # the judge's last line, or why there is none
    seconds: float
    output: str = ""  # the end of all that it printed

    @property
    def is_same(self) -> bool:
        return self.verdict == "same"


Try = Callable[[Candidate], Outcome]
