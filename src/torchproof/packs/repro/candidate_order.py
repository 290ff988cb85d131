"""Decides which candidates of a target to try for a failure, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torchproof.packs.repro.candidate import Candidate, Form
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.graphs.graph_reducer import variants
from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.whole_program import program_candidates
from torchproof.packs.repro.target_recording import TargetRecording
from torchproof.targets import Target

# A failure below Dynamo shows in a captured graph; one in Dynamo needs the Python code.
_BELOW_DYNAMO: tuple[Form, ...] = ("graph", "program", "frame")
_IN_DYNAMO: tuple[Form, ...] = ("frame", "program", "graph")
# These failures need several calls, so the whole program comes first.
_ACROSS_CALLS: tuple[Form, ...] = ("program", "frame", "graph")
_ORDER: dict[str, tuple[Form, ...]] = {
    "compile_error": _BELOW_DYNAMO,
    "numerics": _BELOW_DYNAMO,
    "hang": _BELOW_DYNAMO,
    "slowdown": _BELOW_DYNAMO,
    "compile_time": _BELOW_DYNAMO,
    "memory": _BELOW_DYNAMO,
    "cudagraph_skip": _BELOW_DYNAMO,
    "cudagraph_rerecord": _BELOW_DYNAMO,
    "host_sync": _IN_DYNAMO,
    "graph_break": _IN_DYNAMO,
    "skipped_frame": _IN_DYNAMO,
    "no_op": _ACROSS_CALLS,
    "recompile": _ACROSS_CALLS,
    "recompile_limit": _ACROSS_CALLS,
    "specialization": _ACROSS_CALLS,
    "stale_state": _ACROSS_CALLS,
    "cudagraph_lifetime": _ACROSS_CALLS,
}


class Candidates:
    """The candidates to try, in order; `refused` says why others do not exist."""

    def __init__(
        self,
        recording: TargetRecording,
        target: Target,
        *,
        arguments: Mapping[str, Any],
        include: Collection[str],
    ) -> None:
        self._recording = recording
        self._target = target
        self._arguments = arguments
        self._source = "source" in include
        self.refused = list(recording.refused)

    def of(self, signature: FailureSignature) -> Iterator[Candidate]:
        if self._source:
            yield from self._programs()
        for form in _ORDER.get(signature.kind, _ACROSS_CALLS):
            if form == "program":
                yield from () if self._source else self._programs()
            else:
                yield from self._recorded(form)

    def graphs(self) -> list[Candidate]:
        return [each for each in self._recording.candidates if each.form == "graph"]

    def _recorded(self, form: Form) -> Iterator[Candidate]:
        """Yields all graphs with synthetic tensors before any with recorded ones."""
        candidates = [each for each in self._recording.candidates if each.form == form]
        if form != "graph":
            yield from candidates
            return
        variants_of_each = [variants(each) for each in candidates]
        for depth in range(max(map(len, variants_of_each), default=0)):
            yield from (each[depth] for each in variants_of_each if depth < len(each))

    def _programs(self) -> Iterator[Candidate]:
        try:
            yield from program_candidates(
                self._target, self._arguments, as_written=self._source
            )
        except Unsuitable as reason:
            self.refused.append(str(reason))
