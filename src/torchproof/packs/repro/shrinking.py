"""Candidates made smaller, by the means of their form."""

from __future__ import annotations

from collections.abc import Callable

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs.graph_reducer import reduced as reduced_graph
from torchproof.packs.repro.programs.anonymise import anonymous as nameless
from torchproof.packs.repro.programs.program_reducer import reduced as reduced_program
from torchproof.packs.repro.repro_runner import Court

_NAMING_S = 90.0  # to replace names, whatever shrinking took


def smaller(
    candidate: Candidate,
    court: Court,
    deadline: float,
    *,
    anonymous: bool,
    progress: Callable[[str], None],
) -> Candidate:
    """The smallest found by `deadline` that fails in the same way, names replaced."""
    count = 0

    def fails(smaller_one: Candidate) -> bool:
        nonlocal count
        count += 1
        progress(f"made smaller: {candidate.size} to {smaller_one.size}, try {count}")
        return court.quick(smaller_one).is_same

    if candidate.form == "graph":
        return reduced_graph(candidate, fails, deadline)
    found = reduced_program(candidate, fails, deadline)
    return nameless(found, fails, deadline + _NAMING_S) if anonymous else found
