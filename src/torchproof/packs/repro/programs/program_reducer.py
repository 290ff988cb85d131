"""A program made smaller as long as it fails in the same way."""

from __future__ import annotations

import ast
import copy
import dataclasses
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.edits import (
    Edit,
    Pass,
    bypass,
    chunks,
    expressions,
    fewer_calls,
    holdings,
    hollow,
    items,
    single,
    unwrapped,
)
from torchproof.packs.repro.programs.inlining import (
    flattened,
    inlined,
    looked_up,
    settled,
)
from torchproof.packs.repro.programs.scopes import MODULE, Names
from torchproof.packs.repro.programs.signature_edits import promoted, signatures, sizes
from torchproof.packs.repro.programs.tree_shaking import (
    foreign,
    shaken,
    without_dead_stores,
)
from torchproof.packs.repro.programs.whole_program import size_of

Fails = Callable[[Candidate], bool]
# Fewer calls first, since they make every try after it faster.
PASSES: tuple[Pass, ...] = (fewer_calls, hollow, chunks, holdings, unwrapped, single)
PASSES += (promoted, bypass, settled, inlined, looked_up, flattened)
PASSES += (expressions, items, signatures, sizes)
_AT_ONCE = min(os.cpu_count() or 1, 4)
_ROOTS = ("make", "before_call")


def reduce_program(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """The smallest program found by `deadline` (of `time.monotonic`) that still fails.

    `fails` is called from several threads at once. Each pass goes over the program
    once; all are repeated until none takes anything away.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        work = _Reduction(candidate, fails, deadline, pool)
        while True:
            before = work.best.source
            for each in PASSES:
                work.go_over(each)
            if work.best.source == before or work.is_late:
                return work.best


class _Reduction:
    """The best program so far, and what has been tried."""

    def __init__(
        self, candidate: Candidate, fails: Fails, deadline: float, pool: Executor
    ) -> None:
        self.best, self._fails, self._deadline = candidate, fails, deadline
        self._pool = pool
        self._tried: set[str] = {candidate.source}
        self._tree = ast.parse(candidate.source)

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def go_over(self, each: Pass) -> None:
        """Every edit of a pass; after one that holds, from the same place on."""
        edits = each(self._tree)
        place = 0
        while place < len(edits) and not self.is_late:
            candidates: list[tuple[int, Candidate]] = []
            while place < len(edits) and len(candidates) < _AT_ONCE:
                candidate = self._edited(edits[place])
                if candidate is not None:
                    candidates.append((place, candidate))
                place += 1
            held = self._first_to_hold(candidates)
            if held is not None:
                place, self.best = held
                self._tree = ast.parse(self.best.source)
                edits = each(self._tree)

    def _edited(self, edit: Edit) -> Candidate | None:
        tree = copy.deepcopy(self._tree)
        edit(list(ast.walk(tree)))
        source = tidied(tree)
        if source is None or source in self._tried:
            return None
        return with_source(self.best, source)

    def _first_to_hold(
        self, candidates: list[tuple[int, Candidate]]
    ) -> tuple[int, Candidate] | None:
        """Tries them side by side; those after one that holds come again."""
        outcomes = list(self._pool.map(self._fails, [c for _, c in candidates]))
        for (place, candidate), failed in zip(candidates, outcomes, strict=True):
            self._tried.add(candidate.source)
            if failed:
                return place, candidate
        return None


def tidied(tree: ast.Module) -> str | None:
    """The source of a module without what nothing needs; None where it cannot run."""
    try:
        tree = without_dead_stores(ast.fix_missing_locations(tree))
        tree = shaken(tree, _ROOTS)
        source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        again = ast.parse(source)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compile(again, "candidate", "exec")
    except (SyntaxError, SyntaxWarning, ValueError, TypeError, AttributeError):
        return None
    names = Names(again)
    whole = "make" in names.scopes[MODULE].bound and not names.undefined()
    return source if whole and not foreign(again) else None


def with_source(candidate: Candidate, source: str) -> Candidate:
    return dataclasses.replace(
        candidate, source=source, size=size_of(ast.parse(source))
    )
