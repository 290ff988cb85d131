"""Drafts made smaller, by the means of their form."""

from __future__ import annotations

from collections.abc import Callable

from torchproof.repro import graphs, programs
from torchproof.repro.draft import Draft
from torchproof.repro.trying import Court


def smaller(
    draft: Draft,
    court: Court,
    deadline: float,
    *,
    anonymous: bool,
    progress: Callable[[str], None],
) -> Draft:
    """The smallest found by `deadline` that fails in the same way, names replaced."""
    count = 0

    def fails(candidate: Draft) -> bool:
        nonlocal count
        count += 1
        progress(f"made smaller: {draft.size} to {candidate.size}, try {count}")
        return court.quick(candidate).is_same

    if draft.form == "graph":
        return graphs.reduced(draft, fails, deadline)
    found = programs.reduced(draft, fails, deadline)
    return programs.anonymous(found, fails) if anonymous else found
