"""Reduces a program as long as it fails in the same way."""

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
    bypassed_assignments,
    fewer_calls,
    fewer_items,
    simpler_expressions,
    single_statements,
    stand_in_attributes,
    statement_runs,
    trivial_bodies,
    unwrapped_blocks,
)
from torchproof.packs.repro.programs.inlining import (
    default_parameters,
    evaluated_lookups,
    flattened_bases,
    inlined_names,
)
from torchproof.packs.repro.programs.scopes import MODULE, Names
from torchproof.packs.repro.programs.signature_edits import (
    promoted_parts,
    smaller_integers,
    unread_parameters,
)
from torchproof.packs.repro.programs.tree_shaking import (
    foreign_packages,
    shake,
    without_dead_stores,
)
from torchproof.packs.repro.programs.whole_program import size_of

Fails = Callable[[Candidate], bool]
# Removing calls comes first because it makes all later attempts faster.
PASSES: tuple[Pass, ...] = (
    fewer_calls,
    trivial_bodies,
    statement_runs,
    stand_in_attributes,
    unwrapped_blocks,
    single_statements,
    promoted_parts,
    bypassed_assignments,
    default_parameters,
    inlined_names,
    evaluated_lookups,
    flattened_bases,
    simpler_expressions,
    fewer_items,
    unread_parameters,
    smaller_integers,
)
_AT_ONCE = min(os.cpu_count() or 1, 4)
_ROOTS = ("make", "before_call")


def reduce_program(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """Returns the smallest failing program found by `deadline` (`time.monotonic`).

    It calls `fails` from several threads. It repeats all passes until none of them
    removes anything.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        search = _Search(candidate, fails, deadline, pool)
        while True:
            before = search.best.source
            for each in PASSES:
                search.run_pass(each)
            if search.best.source == before or search.is_late:
                return search.best


class _Search:
    """The smallest failing program so far, and all sources that were tried."""

    def __init__(
        self, candidate: Candidate, fails: Fails, deadline: float, pool: Executor
    ) -> None:
        self.best = candidate
        self._fails = fails
        self._deadline = deadline
        self._pool = pool
        self._tried: set[str] = {candidate.source}
        self._tree = ast.parse(candidate.source)

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def run_pass(self, each: Pass) -> None:
        """Tries all edits of a pass; after a success it goes on at the same index."""
        edits = each(self._tree)
        place = 0
        while place < len(edits) and not self.is_late:
            candidates: list[tuple[int, Candidate]] = []
            while place < len(edits) and len(candidates) < _AT_ONCE:
                candidate = self._edited(edits[place])
                if candidate is not None:
                    candidates.append((place, candidate))
                place += 1
            success = self._first_failing(candidates)
            if success is not None:
                place, self.best = success
                self._tree = ast.parse(self.best.source)
                edits = each(self._tree)

    def _edited(self, edit: Edit) -> Candidate | None:
        tree = copy.deepcopy(self._tree)
        edit(list(ast.walk(tree)))
        source = tidy(tree)
        if source is None or source in self._tried:
            return None
        return with_source(self.best, source)

    def _first_failing(
        self, candidates: list[tuple[int, Candidate]]
    ) -> tuple[int, Candidate] | None:
        """Tries candidates in parallel; those after the first success come again."""
        outcomes = list(self._pool.map(self._fails, [c for _, c in candidates]))
        for (place, candidate), failed in zip(candidates, outcomes, strict=True):
            self._tried.add(candidate.source)
            if failed:
                return place, candidate
        return None


def tidy(tree: ast.Module) -> str | None:
    """Returns the source of a module without dead code; None if it cannot run."""
    try:
        tree = without_dead_stores(ast.fix_missing_locations(tree))
        tree = shake(tree, _ROOTS)
        source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        again = ast.parse(source)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compile(again, "candidate", "exec")
    except (SyntaxError, SyntaxWarning, ValueError, TypeError, AttributeError):
        return None
    names = Names(again)
    whole = "make" in names.scopes[MODULE].bound and not names.undefined()
    return source if whole and not foreign_packages(again) else None


def with_source(candidate: Candidate, source: str) -> Candidate:
    return dataclasses.replace(
        candidate, source=source, size=size_of(ast.parse(source))
    )
