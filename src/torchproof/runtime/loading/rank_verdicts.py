"""What the ranks of a distributed run tell each other about a pack that they load.

Each rank checks the pack for itself, says whether it accepts it, and reads what the
others say, through the store of the process group. A warm-up runs the model, which may
wait for other ranks: they warm up together or not at all. Code with collectives must
not run beside eager: all ranks use the pack, or none. A rank that waited in vain and a
late one read different verdicts, so the first to judge them decides for all. It decides
to use code with collectives only after all ranks have said that they read all verdicts:
a rank whose store fails while it waits does not use the pack.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchproof.runtime import argument_checks
from torchproof.runtime.background import Task, process_is_exiting
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.manifest import Refused
from torchproof.torch_private import process_groups

_LOOK_EVERY_S = 0.02
_LONGEST_WAIT_S = 600.0
# For a pack without collectives: the other ranks may load none, and need not.
_SHORT_WAIT_S = 60.0
_GRACE_S = 1.0  # for a store that answers late
_READ_S = 30.0  # from the last verdict until all ranks have read it
_SHOWN = 12  # digits of a pack's hash
_OUTCOME = "outcome"  # the key of what is decided

# Ranks load their packs in the same order, so the number names the same load on each.
_numbers = itertools.count()


class RefusedByRanks(Refused):
    """This rank could use the pack, but other ranks cannot, or have another one."""


@dataclass(frozen=True)
class Verdict:
    """What one rank says: the hash of its pack, and why it refuses it.

    `collectives` is True if the compiled code has some, or may have.
    """

    rank: int
    pack: str | None = None
    why_not: str | None = None
    collectives: bool = False
    warm: bool = False
    is_missing: bool = False


@dataclass(frozen=True)
class Outcome:
    """What the first rank to judge the verdicts decided for all ranks."""

    rank: int
    why_not: str | None
    warm: bool


class PackRanks:
    """One call of `load`: what this rank says about the pack, and what others say."""

    def __init__(self, group: process_groups.ProcessGroup) -> None:
        self._group = group
        self._number = next(_numbers)
        self._waited_s = 0.0
        self._failure: str | None = None  # of the store
        self._outcome: Outcome | None = None
        self._unread: set[int] = set()  # ranks that may not have read all verdicts
        self.verdicts: dict[int, Verdict] = {}  # of all ranks that answered

    @classmethod
    def here(cls) -> PackRanks | None:
        """None without several ranks."""
        group = process_groups.default_group()
        return None if group is None else cls(group)

    def accept(self, contents: Contents, *, collectives: bool, warm: bool) -> None:
        """Says that this rank can use the pack, and waits for the others.

        Raises `RefusedByRanks` if not all ranks can, and they must run the same code.
        """
        digest = hashlib.sha256(contents.manifest.to_bytes()).hexdigest()
        own = Verdict(self._group.rank, digest, collectives=collectives, warm=warm)
        self._exchange(own)
        if why := self._why_not(own):
            raise RefusedByRanks(why)
        if self._outcome is not None and self._outcome.why_not is not None:
            raise RefusedByRanks("; ".join(self.problems))

    def refuse(self, why: str, *, is_missing: bool = False) -> None:
        """Says that this rank does not use the pack, unless it has said something."""
        if not self.verdicts and self._failure is None:
            verdict = Verdict(self._group.rank, why_not=why, is_missing=is_missing)
            self._exchange(verdict)

    @property
    def have_collectives(self) -> bool:
        """Whether the pack's code has collectives, as far as a rank could read it."""
        return any(verdict.collectives for verdict in self.verdicts.values())

    @property
    def problems(self) -> list[str]:
        """What other ranks say against the pack; also that they say nothing."""
        return [*self._problems()]

    @property
    def all_warm_up(self) -> bool:
        decided = self._outcome if self._failure is None else None
        return decided is not None and decided.warm

    @property
    def all_miss_it(self) -> bool:
        return all(verdict.is_missing for verdict in self.verdicts.values())

    def _all(self) -> list[Verdict]:
        return [self.verdicts[rank] for rank in sorted(self.verdicts)]

    def _why_not(self, own: Verdict) -> str | None:
        """Why no rank that has this pack may use it, by the verdicts so far."""
        packs = {v.rank: v.pack for v in self._all() if v.why_not is None}
        if len({*packs.values()}) > 1:
            each = ", ".join(f"rank {r} {str(p)[:_SHOWN]}" for r, p in packs.items())
            return f"the ranks have different packs ({each}): load the same pack on all"
        problems = self.problems
        if own.collectives and problems:
            return f"its code has collectives, and {'; '.join(problems)}"
        return None

    def _problems(self) -> Iterator[str]:
        if self._failure is not None:
            yield self._failure
            return
        outcome = self._outcome
        for rank in sorted(self._group.others):
            verdict = self.verdicts.get(rank)
            if verdict is None:
                yield f"rank {rank} did not load it within {self._waited_s:.0f} s"
            elif verdict.why_not is not None:
                yield f"rank {rank} refused it: {verdict.why_not}"
            elif rank in self._unread:
                yield f"rank {rank} did not say that it read what all ranks said"
            elif outcome is not None and outcome.rank == rank and outcome.why_not:
                yield f"rank {rank} refused it for all ranks: {outcome.why_not}"

    # -- the store ---------------------------------------------------------------------

    def _exchange(self, own: Verdict) -> None:
        limit_s = _LONGEST_WAIT_S if own.collectives else _SHORT_WAIT_S
        limit_s = min(argument_checks.deadline_s(None), limit_s)
        until = time.monotonic() + limit_s
        self._waited_s = limit_s
        self.verdicts = {own.rank: own}
        # In a thread of its own: a store that hangs must not stop the service.
        thread = Task(lambda: self._read_all(own, until), "torchproof-store")
        if not thread.wait(until + _GRACE_S):
            self._failure = f"the store did not answer for {limit_s:.0f} s"
        elif isinstance(thread.error, Exception):
            lines = str(thread.error).splitlines() or [type(thread.error).__name__]
            self._failure = f"the store failed: {lines[0]}"
        elif thread.error is not None:
            raise thread.error

    def _read_all(self, own: Verdict, until: float) -> None:
        store = self._group.store
        store.set(self._key(own.rank), json.dumps(dataclasses.asdict(own)))
        while self._read_missing(store) and time.monotonic() < until:
            if process_is_exiting.wait(_LOOK_EVERY_S):
                return
        if own.why_not is not None:
            return
        if own.collectives and not self.problems:
            self._read_together(store, min(until, time.monotonic() + _READ_S))
        self._decide(store, own)

    def _key(self, name: int | str) -> str:
        return f"torchproof/load/{self._number}/{name}"

    def _read_together(self, store: Any, until: float) -> None:
        """Says that this rank has read all verdicts, and waits for the others."""
        store.set(self._key(f"read/{self._group.rank}"), "1")
        unread = set(self._group.others)
        while True:
            unread -= {r for r in unread if store.check([self._key(f"read/{r}")])}
            is_over = not unread or store.check([self._key(_OUTCOME)])
            is_over = is_over or time.monotonic() >= until
            if is_over or process_is_exiting.wait(_LOOK_EVERY_S):
                break
        self._unread = unread

    def _read_missing(self, store: Any) -> bool:
        """Reads what other ranks have said since; whether some said nothing yet."""
        missing = sorted(self._group.others - self.verdicts.keys())
        for rank in missing:
            if store.check([self._key(rank)]):
                text = store.get(self._key(rank))
                self.verdicts[rank] = Verdict(**json.loads(text))
        return not self._group.others <= self.verdicts.keys()

    def _decide(self, store: Any, own: Verdict) -> None:
        """Proposes what this rank concludes, and reads what was decided.

        Only a rank that has read all verdicts proposes to use a pack with collectives.
        A rank that is outvoted reads those that it did not wait for.
        """
        why = self._why_not(own)
        warm = not self.problems and all(v.warm for v in self.verdicts.values())
        proposed = Outcome(own.rank, why, warm and why is None)
        text = json.dumps(dataclasses.asdict(proposed))
        answer = store.compare_set(self._key(_OUTCOME), "", text)
        decided = Outcome(**json.loads(answer))
        self._read_missing(store)
        if decided.rank != own.rank:  # its reason counts
            self._unread.clear()
        self._outcome = decided
