"""The candidates of one recorded graph: made numbers first, then real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs.graph_ir import Input, Sketch
from torchproof.packs.repro.graphs.source_writer import source

_ABOUT = "torch operations of one captured graph under neutral names"


@dataclass(frozen=True)
class Recorded:
    """A graph and where real values of its inputs lie, by input."""

    sketch: Sketch
    origin: str
    folder: str = ""
    files: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "sketch": self.sketch.to_json(),
            "folder": self.folder,
            "files": dict(self.files or {}),
        }

    @classmethod
    def of(cls, candidate: Candidate) -> Recorded:
        told = candidate.record
        sketch = Sketch.from_json(told["sketch"])
        return cls(sketch, candidate.origin, told["folder"], told["files"])


def variants(candidate: Candidate) -> list[Candidate]:
    """The candidate with made numbers, with real inputs, and with real weights if kept."""
    recorded = Recorded.of(candidate)
    plain = tuple(replace(entry, file="") for entry in recorded.sketch.inputs)
    candidates = [_with(recorded, plain)]
    for roles in (("input",), ("input", "weight", "buffer")):
        filled = tuple(_filled(entry, recorded, roles) for entry in plain)
        if filled != plain and filled not in [
            _inputs(candidate) for candidate in candidates
        ]:
            candidates.append(_with(recorded, filled))
    return candidates


def seeded(recorded: Recorded) -> Candidate:
    """A candidate of what was recorded; files beside it for inputs that name one."""
    sketch = recorded.sketch
    needed = [entry for entry in sketch.inputs if entry.file]
    return Candidate(
        form="graph",
        source=source(sketch),
        about=about(needed),
        size=sketch.size,
        files={
            entry.file: (Path(recorded.folder) / entry.file).read_bytes()
            for entry in needed
        },
        origin=recorded.origin,
        record=recorded.to_json(),
    )


def about(real: Sequence[Input]) -> str:
    """What a candidate holds of the user's, as one sentence."""
    if not real:
        return f"{_ABOUT}, with made inputs and made weights"
    if all(entry.role == "input" for entry in real):
        return f"{_ABOUT}, with real values of its inputs and made weights"
    return f"{_ABOUT}, with real values of its inputs and of its weights"


def _with(recorded: Recorded, inputs: tuple[Input, ...]) -> Candidate:
    return seeded(replace(recorded, sketch=replace(recorded.sketch, inputs=inputs)))


def _filled(entry: Input, recorded: Recorded, roles: tuple[str, ...]) -> Input:
    file = (recorded.files or {}).get(entry.name, "")
    if not file or entry.role not in roles:
        return entry
    return replace(entry, file=file, storage="", offset=0)


def _inputs(candidate: Candidate) -> tuple[Input, ...]:
    return Recorded.of(candidate).sketch.inputs
