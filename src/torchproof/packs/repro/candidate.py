"""A program that may reproduce a failure, its outcome, and what a pack of it holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.records import JsonObject, Keywords, TorchConfig, shapes


class RecordedFacts(shapes.Environment, total=False):
    """The machine and the settings of the run that a repro was made from."""

    cpu: str | None
    configs: Mapping[str, TorchConfig]  # changed values by module of torch


Form = Literal["graph", "program"]


@dataclass(frozen=True)
class Settings:
    """How a repro compiles and calls the function of its candidate."""

    compile: Keywords = field(default_factory=dict, hash=False)
    as_written: bool = False  # the candidate calls torch.compile itself
    train: bool = False
    device: str = "cpu"
    seed: int = 0
    limit_s: float = 120.0  # for one run; a longer one is a hang

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Candidate:
    """Source that needs only torch and defines `make() -> (fn, calls)`.

    It may also define `before_call(fn, index)`. `size` is what reduction minimises: the
    nodes of a graph, or the statements of a program.
    """

    form: Form
    source: str
    about: str  # one sentence: which parts of the user's program it contains
    size: int
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)  # beside it
    origin: str = ""  # the compile id of a graph, or the file of a program
    # The JSON that `source` was written from; needed to edit it, never packed.
    record: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Outcome:
    """The verdict of the oracle on one run of a candidate."""

    verdict: Literal["same", "other", "none", "timeout", "broken"]
    text: str  # the oracle's last line, or why the run printed none
    seconds: float
    output: str = ""  # the end of what the run printed
    observed: str = ""  # the oracle's line without its verdict

    @property
    def is_same(self) -> bool:
        return self.verdict == "same"


@dataclass(frozen=True)
class VerifiedRepro:
    """A repro that failed as stated in a process of its own, and how it was made."""

    signature: FailureSignature
    settings: Settings
    candidate: Candidate
    first: Candidate  # before reduction
    outcome: Outcome
    repro: str
    facts: RecordedFacts
    versions: str
    command: str
    target: str
    minified: bool


@dataclass(frozen=True)
class PackFile:
    """One file; a `final` one was verified as it is, so redaction leaves it alone."""

    content: bytes
    about: str
    final: bool = False
