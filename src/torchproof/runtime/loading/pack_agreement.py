"""The agreement of the ranks of a distributed run on a pack that they load.

Each rank checks the pack for itself, and votes. Code with collectives must not run
beside eager: all ranks use the pack, or none does. A pack without collectives serves
the ranks that can use it; a warm-up runs the model, which may wait for other ranks, so
it takes place on all ranks or on none.
"""

from __future__ import annotations

import hashlib
import itertools
import time

from torchproof.runtime import argument_checks
from torchproof.runtime.agreement import Vote, Votes
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.manifest import Refused
from torchproof.torch_private import process_groups

# For a pack without collectives: the other ranks may load none, and need not.
_SHORT_WAIT_S = 60.0
_MISSING = "no pack"
_SUBJECT = "pack"

# Ranks load their packs in the same order, so the number names the same load on each.
_numbers = itertools.count()


class RefusedByRanks(Refused):
    """This rank could use the pack, but other ranks cannot, or have another one."""


class PackAgreement:
    """One call of `load`: what this rank says about the pack, and what others say."""

    def __init__(self, group: process_groups.ProcessGroup) -> None:
        self._rank, self._others = group.rank, group.others
        self._votes = Votes(group, f"load/{next(_numbers)}")
        self._has_voted = False
        self.objection: Vote | None = None
        self.has_collectives = False  # code that other ranks could use, or this one
        self.all_miss_it = False

    @classmethod
    def here(cls) -> PackAgreement | None:
        """None without several ranks."""
        group = process_groups.default_group()
        return None if group is None else cls(group)

    @property
    def problems(self) -> list[str]:
        return [] if self.objection is None else [str(self.objection)]

    def accept(self, contents: Contents, *, collectives: bool, warm: bool) -> None:
        """Says that this rank can use the pack, and waits for the others.

        Raises `RefusedByRanks` if not all ranks can, and they must run the same code.
        """
        self._has_voted, self.has_collectives = True, collectives
        digest = hashlib.sha256(contents.manifest.to_bytes()).hexdigest()
        what = {"pack": digest[:12], "collectives": collectives, "warm": warm}
        own = Vote(self._rank, what=what)
        until = _until(None if collectives else _SHORT_WAIT_S)
        self.objection = self._votes.agree(_SUBJECT, own, self._others, until=until)
        if collectives and self.objection is not None:
            raise RefusedByRanks(f"its code has collectives, and {self.objection}")

    def refuse(self, why: str, *, is_missing: bool = False) -> None:
        """Says that this rank does not use the pack, unless it has said something."""
        if self._has_voted:
            return
        self._has_voted = True
        kind = _MISSING if is_missing else "pack"
        self._votes.say(_SUBJECT, Vote(self._rank, kind, why))
        votes = self._votes.hear(_SUBJECT, self._others, until=_until(_SHORT_WAIT_S))
        whats = [vote.what for vote in votes.values() if vote.what is not None]
        self.has_collectives = any(what["collectives"] for what in whats)
        self.all_miss_it = all(vote.kind == _MISSING for vote in votes.values())


def _until(limit_s: float | None) -> float:
    deadline_s = argument_checks.deadline_s(None)
    return time.monotonic() + (
        deadline_s if limit_s is None else min(limit_s, deadline_s)
    )
