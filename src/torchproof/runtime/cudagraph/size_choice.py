"""Chooses which sizes to capture, so that all calls together cost least.

Takes the cost of the calls of each observed size in each candidate size, returns the
chosen candidates. If there are few possible choices, all are compared. Otherwise
candidates are added one by one, always the one that saves most, from several starting
points; then one or two of the chosen are taken out and replaced in the same way, as
long as that helps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

Numbers = NDArray[Any]
Rows = list[int]

_FEW = 5000  # choices that are all compared
_STARTS = 16
_ROUNDING = 1e-9  # relative error of sums


@dataclass(frozen=True)
class Problem:
    """The candidate sizes as rows, the observed sizes as columns, and the limits.

    `padded[row, column]` is the cost of a column's calls in a row, or their eager cost
    if they do not fit. The rows in `kept` are always chosen.
    """

    eager: Numbers
    padded: Numbers
    own_bytes: Numbers  # of each row
    scratch_bytes: Numbers  # of each row; the chosen rows share the largest
    kept: Rows
    captures: int | None
    budget_bytes: int | None

    def cost(self, rows: Iterable[int]) -> float:
        return float(self._costs(rows).sum())

    def _costs(self, rows: Iterable[int]) -> Numbers:
        each = [self.eager, *(self.padded[row] for row in rows)]
        return numpy.minimum.reduce(each)

    def savings(self, rows: Rows) -> Numbers:
        """What each further row would save."""
        costs = self._costs(rows)
        savings = costs.sum() - numpy.minimum(self.padded, costs).sum(axis=1)
        savings[savings < costs.sum() * _ROUNDING] = 0
        return savings

    def scratch(self, rows: Rows) -> int:
        return int(self.scratch_bytes[rows].max(initial=0))

    def bytes(self, rows: Rows) -> int:
        return int(self.own_bytes[rows].sum()) + self.scratch(rows)

    def bytes_with(self, rows: Rows) -> Numbers:
        """The bytes of these rows together with each further row."""
        scratch = numpy.maximum(self.scratch_bytes, self.scratch(rows))
        own: Numbers = self.own_bytes + self.own_bytes[rows].sum()
        return own + scratch

    def allows(self, rows: Rows) -> bool:
        """Whether the limits do, which never exclude the kept rows."""
        most = self.captures
        if most is not None and len(rows) > max(most, len(self.kept)):
            return False
        return self.budget_bytes is None or self.bytes(rows) <= self._budget()

    def _budget(self) -> int:
        return max(self.budget_bytes or 0, self.bytes(self.kept))

    def additions(self, rows: Rows) -> Numbers:
        """Whether the limits allow each further row."""
        count = len(self.padded)
        if self.captures is not None and len(rows) >= self.captures:
            return numpy.zeros(count, dtype=bool)
        if self.budget_bytes is None:
            return numpy.ones(count, dtype=bool)
        allowed: Numbers = self.bytes_with(rows) <= self._budget()
        return allowed


def choose(problem: Problem) -> Rows:
    """The chosen rows, in ascending order."""
    choices = _all_choices(problem)
    if choices is None:
        return sorted(_improved(problem, _first_choice(problem)))
    allowed = [rows for rows in choices if problem.allows(rows)]
    return sorted(min(allowed, key=problem.cost))


def _all_choices(problem: Problem) -> Iterator[Rows] | None:
    """Every choice, the smallest first; None if there are too many."""
    free = [row for row in range(len(problem.padded)) if row not in problem.kept]
    most = len(free)
    if problem.captures is not None:
        most = min(most, max(0, problem.captures - len(problem.kept)))
    counts = range(most + 1)
    if sum(math.comb(len(free), count) for count in counts) > _FEW:
        return None
    return (
        [*problem.kept, *rows]
        for count in counts
        for rows in itertools.combinations(free, count)
    )


def _first_choice(problem: Problem) -> Rows:
    """The best of several choices, each of which starts with another row."""
    apart = -(-len(problem.padded) // _STARTS)
    starts = [[*problem.kept, row] for row in range(0, len(problem.padded), apart)]
    allowed = [problem.kept, *(rows for rows in starts if problem.allows(rows))]
    return min((_filled(problem, rows) for rows in allowed), key=problem.cost)


def _improved(problem: Problem, rows: Rows) -> Rows:
    """Replaces one row, or two neighbours, as long as that lowers the cost."""
    least = problem.cost(range(len(problem.padded)))
    while problem.cost(rows) > least:
        better = _better(problem, rows)
        if better is None:
            break
        rows = better
    return rows


def _better(problem: Problem, rows: Rows) -> Rows | None:
    limit = problem.cost(rows) * (1 - _ROUNDING)
    free = sorted({*rows} - {*problem.kept})
    for out in [free[i : i + count] for count in (1, 2) for i in range(len(free))]:
        tried = _filled(problem, [row for row in rows if row not in out])
        if problem.cost(tried) < limit:
            return tried
    return None


def _filled(problem: Problem, rows: Rows) -> Rows:
    """These rows and further ones up to the limits."""
    by_saving = _grown(problem, rows, per_byte=False)
    if problem.budget_bytes is None:
        return by_saving
    return min(by_saving, _grown(problem, rows, per_byte=True), key=problem.cost)


def _grown(problem: Problem, rows: Rows, *, per_byte: bool) -> Rows:
    """Adds the row that saves most, or most per byte, as long as one may be added."""
    rows = [*rows]
    while True:
        worth = problem.savings(rows) * problem.additions(rows)
        if per_byte:
            growth = problem.bytes_with(rows) - problem.bytes(rows)
            worth = worth / numpy.maximum(1, growth)
        if not worth.any():
            return rows
        rows.append(int(worth.argmax()))
