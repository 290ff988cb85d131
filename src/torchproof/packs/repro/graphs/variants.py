"""The candidates of one recorded graph: with synthetic tensors, then recorded ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs.graph_ir import GraphIR, Input
from torchproof.packs.repro.graphs.source_writer import candidate_source

_ABOUT = "the torch operations of one captured graph, with neutral names"


@dataclass(frozen=True)
class RecordedGraph:
    """A graph, and the files with the recorded tensors of its inputs."""

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
        record = candidate.record
        graph = GraphIR.from_json(record["graph"])
        return cls(graph, candidate.origin, record["folder"], record["files"])


def variants(candidate: Candidate) -> list[Candidate]:
    """Returns it with synthetic tensors, recorded inputs, and recorded weights."""
    recorded = RecordedGraph.of(candidate)
    plain = tuple(replace(entry, file="") for entry in recorded.graph.inputs)
    candidates = [_with_inputs(recorded, plain)]
    for roles in (("input",), ("input", "weight", "buffer")):
        inputs = tuple(_from_file(entry, recorded, roles) for entry in plain)
        if inputs != plain and inputs not in [
            _inputs(candidate) for candidate in candidates
        ]:
            candidates.append(_with_inputs(recorded, inputs))
    return candidates


def to_candidate(recorded: RecordedGraph) -> Candidate:
    """Writes the candidate of a graph, with the files that its inputs name."""
    graph = recorded.graph
    from_files = [entry for entry in graph.inputs if entry.file]
    return Candidate(
        form="graph",
        source=candidate_source(graph),
        about=about(from_files),
        size=graph.size,
        files={
            entry.file: (Path(recorded.folder) / entry.file).read_bytes()
            for entry in from_files
        },
        origin=recorded.origin,
        record=recorded.to_json(),
    )


def about(recorded: Sequence[Input]) -> str:
    """Says which of the user's tensors a candidate contains."""
    if not recorded:
        return f"{_ABOUT}, with synthetic inputs and weights"
    if all(entry.role == "input" for entry in recorded):
        return f"{_ABOUT}, with recorded inputs and synthetic weights"
    return f"{_ABOUT}, with recorded inputs and weights"


def _with_inputs(recorded: RecordedGraph, inputs: tuple[Input, ...]) -> Candidate:
    return to_candidate(replace(recorded, graph=replace(recorded.graph, inputs=inputs)))


def _from_file(entry: Input, recorded: RecordedGraph, roles: tuple[str, ...]) -> Input:
    file = (recorded.files or {}).get(entry.name, "")
    if not file or entry.role not in roles:
        return entry
    return replace(entry, file=file, storage="", offset=0)


def _inputs(candidate: Candidate) -> tuple[Input, ...]:
    return RecordedGraph.of(candidate).graph.inputs
