"""Which candidates of a target are tried for a symptom, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torchproof.packs.repro.candidate import Candidate, Form
from torchproof.packs.repro.failure_signature import Symptom
from torchproof.packs.repro.graphs.variants import variants
from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.whole_program import as_it_is, program_candidate
from torchproof.packs.repro.target_recording import Captured
from torchproof.targets import Target

# What fails below Dynamo shows in a graph; what Dynamo does not trace shows in Python.
_BELOW: tuple[Form, ...] = ("graph", "program", "frame")
_ABOVE: tuple[Form, ...] = ("frame", "program", "graph")
_AROUND: tuple[Form, ...] = ("program", "frame", "graph")  # it takes several calls
_ORDER: dict[str, tuple[Form, ...]] = {
    "compile_error": _BELOW,
    "numerics": _BELOW,
    "hang": _BELOW,
    "slowdown": _BELOW,
    "compile_time": _BELOW,
    "memory": _BELOW,
    "cudagraph_skip": _BELOW,
    "cudagraph_rerecord": _BELOW,
    "host_sync": _ABOVE,
    "graph_break": _ABOVE,
    "skipped_frame": _ABOVE,
    "no_op": _AROUND,
    "recompile": _AROUND,
    "recompile_limit": _AROUND,
    "specialization": _AROUND,
    "stale_state": _AROUND,
    "cudagraph_lifetime": _AROUND,
}


class Candidates:
    """The candidates to try, in order; `refused` says why there are not more."""

    def __init__(
        self,
        captured: Captured,
        target: Target,
        *,
        arguments: Mapping[str, Any],
        include: Collection[str],
    ) -> None:
        self._captured, self._target = captured, target
        self._arguments = arguments
        self._source = "source" in include
        self.refused = list(captured.refused)

    def of(self, symptom: Symptom) -> Iterator[Candidate]:
        if self._source:
            yield from self._programs()
        for form in _ORDER.get(symptom.kind, _AROUND):
            if form == "program":
                yield from () if self._source else self._programs()
            else:
                yield from self._recorded(form)

    def graphs(self) -> list[Candidate]:
        return [
            candidate
            for candidate in self._captured.candidates
            if candidate.form == "graph"
        ]

    def _recorded(self, form: Form) -> Iterator[Candidate]:
        """With made values first, for all of them: real ones only if they matter."""
        found = [
            candidate
            for candidate in self._captured.candidates
            if candidate.form == form
        ]
        if form != "graph":
            yield from found
            return
        several = [variants(candidate) for candidate in found]
        for depth in range(max(map(len, several), default=0)):
            yield from (each[depth] for each in several if depth < len(each))

    def _programs(self) -> Iterator[Candidate]:
        program = as_it_is if self._source else program_candidate
        try:
            yield program(self._target, self._arguments)
        except Unsuitable as reason:
            self.refused.append(str(reason))
