"""The drafts of one recorded graph: made numbers first, then real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import Draft
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
    def of(cls, draft: Draft) -> Recorded:
        told = draft.record
        sketch = Sketch.from_json(told["sketch"])
        return cls(sketch, draft.origin, told["folder"], told["files"])


def variants(draft: Draft) -> list[Draft]:
    """The draft with made numbers, with real inputs, and with real weights if kept."""
    recorded = Recorded.of(draft)
    plain = tuple(replace(entry, file="") for entry in recorded.sketch.inputs)
    drafts = [_with(recorded, plain)]
    for roles in (("input",), ("input", "weight", "buffer")):
        filled = tuple(_filled(entry, recorded, roles) for entry in plain)
        if filled != plain and filled not in [_inputs(draft) for draft in drafts]:
            drafts.append(_with(recorded, filled))
    return drafts


def seeded(recorded: Recorded) -> Draft:
    """A draft of what was recorded; files beside it for inputs that name one."""
    sketch = recorded.sketch
    needed = [entry for entry in sketch.inputs if entry.file]
    return Draft(
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
    """What a draft holds of the user's, as one sentence."""
    if not real:
        return f"{_ABOUT}, with made inputs and made weights"
    if all(entry.role == "input" for entry in real):
        return f"{_ABOUT}, with real values of its inputs and made weights"
    return f"{_ABOUT}, with real values of its inputs and of its weights"


def _with(recorded: Recorded, inputs: tuple[Input, ...]) -> Draft:
    return seeded(replace(recorded, sketch=replace(recorded.sketch, inputs=inputs)))


def _filled(entry: Input, recorded: Recorded, roles: tuple[str, ...]) -> Input:
    file = (recorded.files or {}).get(entry.name, "")
    if not file or entry.role not in roles:
        return entry
    return replace(entry, file=file, storage="", offset=0)


def _inputs(draft: Draft) -> tuple[Input, ...]:
    return Recorded.of(draft).sketch.inputs
