"""A program made smaller as long as it fails in the same way."""

from __future__ import annotations

import ast
import copy
import dataclasses
import time
import warnings
from collections.abc import Callable

from torchproof.repro.draft import Draft
from torchproof.repro.programs.edits import (
    Edit,
    Pass,
    bypass,
    chunks,
    expressions,
    hollow,
    items,
    signatures,
    single,
    sizes,
    unwrapped,
)
from torchproof.repro.programs.folding import flattened, inlined, looked_up, settled
from torchproof.repro.programs.scopes import MODULE, Names
from torchproof.repro.programs.shaking import foreign, shaken
from torchproof.repro.programs.whole import size_of

Fails = Callable[[Draft], bool]
PASSES: tuple[Pass, ...] = (hollow, chunks, items, unwrapped, single, bypass)
PASSES += (settled, expressions, looked_up, inlined, flattened, signatures, sizes)
_ROOTS = ("make", "before_call")


def reduced(draft: Draft, fails: Fails, deadline: float) -> Draft:
    """The smallest program found by `deadline` (of `time.monotonic`) that still fails.

    Each pass goes over the program once; all are repeated until none takes anything
    away.
    """
    work = _Reduction(draft, fails, deadline)
    while True:
        before = work.draft.source
        for each in PASSES:
            work.go_over(each)
        if work.draft.source == before or work.is_late:
            return work.draft


class _Reduction:
    """The best program so far, and what has been tried."""

    def __init__(self, draft: Draft, fails: Fails, deadline: float) -> None:
        self.draft, self._fails, self._deadline = draft, fails, deadline
        self._tried: set[str] = {draft.source}
        self._tree = ast.parse(draft.source)

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def go_over(self, each: Pass) -> None:
        """Every edit of a pass; after one that holds, from the same place on."""
        place, edits = 0, each(self._tree)
        while place < len(edits) and not self.is_late:
            if self._holds(edits[place]):
                edits = each(self._tree)
            else:
                place += 1

    def _holds(self, edit: Edit) -> bool:
        tree = copy.deepcopy(self._tree)
        edit(list(ast.walk(tree)))
        source = tidied(tree)
        if source is None or source in self._tried:
            return False
        self._tried.add(source)
        candidate = with_source(self.draft, source)
        if not self._fails(candidate):
            return False
        self.draft, self._tree = candidate, ast.parse(source)
        return True


def tidied(tree: ast.Module) -> str | None:
    """The source of a module without what nothing needs; None where it cannot run."""
    try:
        tree = shaken(ast.fix_missing_locations(tree), _ROOTS)
        source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        again = ast.parse(source)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compile(again, "draft", "exec")
    except (SyntaxError, SyntaxWarning, ValueError, TypeError, AttributeError):
        return None
    names = Names(again)
    whole = "make" in names.scopes[MODULE].bound and not names.undefined()
    return source if whole and not foreign(again) else None


def with_source(draft: Draft, source: str) -> Draft:
    return dataclasses.replace(draft, source=source, size=size_of(ast.parse(source)))
