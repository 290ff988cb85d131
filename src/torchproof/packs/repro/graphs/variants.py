"""The candidates of one recorded graph: made numbers first, then real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs.graph_ir import GraphIR, Input
from torchproof.packs.repro.graphs.source_writer import source

_ABOUT = "torch operations of one captured graph under neutral names"


@dataclass(frozen=True)
class RecordedGraph:
    """A graph and where real values of its inputs lie, by input."""

    graph: GraphIR
    origin: str
    folder: str = ""
    files: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "graph": self.graph.to_json(),
            "folder": self.folder,
            "files": dict(self.files or {}),
        }

    @classmethod
    def of(cls, candidate: Candidate) -> RecordedGraph:
        told = candidate.record
        graph = GraphIR.from_json(told["graph"])
        return cls(graph, candidate.origin, told["folder"], told["files"])


def variants(candidate: Candidate) -> list[Candidate]:
    """The candidate with made numbers, with real inputs, and with real weights if kept."""
    recorded = RecordedGraph.of(candidate)
    plain = tuple(replace(entry, file="") for entry in recorded.graph.inputs)
    candidates = [_with(recorded, plain)]
    for roles in (("input",), ("input", "weight", "buffer")):
        filled = tuple(_filled(entry, recorded, roles) for entry in plain)
        if filled != plain and filled not in [
            _inputs(candidate) for candidate in candidates
        ]:
            candidates.append(_with(recorded, filled))
    return candidates


def to_candidate(recorded: RecordedGraph) -> Candidate:
    """A candidate of what was recorded; files beside it for inputs that name one."""
    graph = recorded.graph
    needed = [entry for entry in graph.inputs if entry.file]
    return Candidate(
        form="graph",
        source=source(graph),
        about=about(needed),
        size=graph.size,
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


def _with(recorded: RecordedGraph, inputs: tuple[Input, ...]) -> Candidate:
    return to_candidate(replace(recorded, graph=replace(recorded.graph, inputs=inputs)))


def _filled(entry: Input, recorded: RecordedGraph, roles: tuple[str, ...]) -> Input:
    file = (recorded.files or {}).get(entry.name, "")
    if not file or entry.role not in roles:
        return entry
    return replace(entry, file=file, storage="", offset=0)


def _inputs(candidate: Candidate) -> tuple[Input, ...]:
    return RecordedGraph.of(candidate).graph.inputs
