"""Reduces a program as long as it fails in the same way."""

from __future__ import annotations

import ast
import dataclasses
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.edits import PASSES, Pass
from torchproof.packs.repro.programs.scopes import Globals
from torchproof.packs.repro.programs.tree_shaking import foreign_packages, shake
from torchproof.packs.repro.programs.whole_program import ROOTS, size_of

Fails = Callable[[Candidate], bool]
_AT_ONCE = min(os.cpu_count() or 1, 4)


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
        tree = ast.parse(candidate.source)
        self._undefined = Globals(tree).undefined()
        # Removing what seems unreachable may remove the failure.
        shaken = self._source(tree, shaken=True)
        self._shakes = shaken == candidate.source
        if shaken is not None and not self._shakes and not self.is_late:
            self._shakes = fails(with_source(candidate, shaken))
            self.best = with_source(candidate, shaken) if self._shakes else candidate

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def run_pass(self, each: Pass) -> None:
        """Tries all changes of a pass; after a success it goes on at the same one."""
        place = 0
        while not self.is_late:
            changes = self._changes(each)
            candidates: list[tuple[int, Candidate]] = []
            while place < len(changes) and len(candidates) < _AT_ONCE:
                candidate = self._changed(each, *changes[place])
                if candidate is not None:
                    candidates.append((place, candidate))
                place += 1
            if not candidates:
                return
            success = self._first_failing(candidates)
            if success is not None:
                place, self.best = success

    def _changes(self, each: Pass) -> list[tuple[int, int]]:
        """Returns the changes of a pass: the number of a node, and of its change."""
        return [
            (number, index)
            for number, node in enumerate(ast.walk(ast.parse(self.best.source)))
            for index, _ in enumerate(each(node))
        ]

    def _changed(self, each: Pass, number: int, index: int) -> Candidate | None:
        tree = ast.parse(self.best.source)
        node = next(islice(ast.walk(tree), number, None))
        change = next(islice(each(node), index, None))
        change()
        source = self._source(tree, shaken=self._shakes)
        if source is None or source in self._tried:
            return None
        return with_source(self.best, source)

    def _source(self, tree: ast.Module, *, shaken: bool) -> str | None:
        """Returns the source of a module; None if it cannot run."""
        try:
            tree = ast.parse(ast.unparse(ast.fix_missing_locations(tree)))
            source = ast.unparse(shake(tree, ROOTS) if shaken else tree) + "\n"
            again = ast.parse(source)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                compile(again, "candidate", "exec")
            names = Globals(again)
        except (SyntaxError, SyntaxWarning, ValueError, TypeError, AttributeError):
            return None
        is_whole = "make" in names.bound
        is_whole &= names.undefined() <= self._undefined
        return source if is_whole and not foreign_packages(again) else None

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


def with_source(candidate: Candidate, source: str) -> Candidate:
    return dataclasses.replace(
        candidate, source=source, size=size_of(ast.parse(source))
    )
