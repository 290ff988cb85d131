"""Chooses which of many sizes to capture, so that the calls cost least in total.

Takes the cost of every call in each size, returns the chosen sizes. A call costs as
much as in the cheapest chosen row, or as in eager. The rows need no order;
`one_dimension` handles rows sorted by size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Cost = float  # sums of integers are exact

# The number of table entries that `among_many` may read to prove optimality.
PROOF_LIMIT = 2_000_000


@dataclass(frozen=True)
class Problem:
    """The candidate sizes as rows, the observed sizes as columns, and the limits.

    `padded[row][column]` is the cost of a column's calls in a row, or their eager cost
    if they do not fit. The rows in `kept` are always chosen.
    """

    eager: Sequence[Cost]
    padded: Sequence[Sequence[Cost]]
    own_bytes: Sequence[int]  # of each row
    scratch_bytes: Sequence[int]  # of each row; the chosen rows share the largest
    captures: int | None = None
    budget_bytes: int | None = None
    kept: frozenset[int] = frozenset()

    def allows(self, rows: Sequence[int]) -> bool:
        if self.captures is not None and len(rows) > self.captures:
            return False
        return self.budget_bytes is None or self.bytes(rows) <= self.budget_bytes

    def limited(self, captures: int | None, budget_bytes: int | None) -> Problem:
        """The problem with these limits, raised to what the kept rows need."""
        rows = [*self.kept]
        return dataclasses.replace(
            self,
            captures=captures and max(captures, len(rows)),
            budget_bytes=budget_bytes and max(budget_bytes, self.bytes(rows)),
        )

    def bytes(self, rows: Sequence[int]) -> int:
        return sum(self.own_bytes[row] for row in rows) + self.scratch(rows)

    def scratch(self, rows: Sequence[int]) -> int:
        return max((self.scratch_bytes[row] for row in rows), default=0)

    def cost(self, rows: Iterable[int]) -> Cost:
        return sum(self.costs(rows))

    def costs(
        self, rows: Iterable[int], costs: Sequence[Cost] | None = None
    ) -> list[Cost]:
        """The cost of each column with these rows; `costs` is the cost without them."""
        lists = [costs or self.eager, *(self.padded[row] for row in rows)]
        return [min(column) for column in zip(*lists, strict=True)]

    @cached_property
    def cheaper(self) -> list[list[tuple[int, Cost]]]:
        """For each row, the columns that cost less there than in eager."""
        return [
            [(c, cost) for c, cost in enumerate(row) if cost < self.eager[c]]
            for row in self.padded
        ]

    def gain(self, row: int, costs: Sequence[Cost]) -> Cost:
        """The saving of one additional row."""
        return sum(costs[c] - cost for c, cost in self.cheaper[row] if cost < costs[c])


def among_many(problem: Problem) -> tuple[list[int], bool]:
    """Good rows, and whether they are proved to be the best.

    A greedy choice is improved by exchanges, then by branch and bound. Several rows
    save at most the sum of their single savings, which bounds every choice.
    """
    rows = _exchanged(problem, greedy(problem))
    search = _Search(problem, rows, problem.cost(rows), PROOF_LIMIT)
    costs = problem.costs(problem.kept)
    search.descend([*problem.kept], costs, _others(problem, problem.kept))
    return sorted(search.rows), search.left >= 0


def _others(problem: Problem, rows: Iterable[int]) -> list[int]:
    chosen = {*rows}
    return [row for row in range(len(problem.padded)) if row not in chosen]


def greedy(problem: Problem, rows: Iterable[int] = ()) -> list[int]:
    """Adds rows one by one, by their saving or their saving per byte."""
    start = [*problem.kept.union(rows)]
    plain = _grown(problem, start, per_byte=False)
    if problem.budget_bytes is None:
        return plain
    return min(plain, _grown(problem, start, per_byte=True), key=problem.cost)


def _grown(problem: Problem, start: list[int], *, per_byte: bool) -> list[int]:
    rows = [*start]
    while True:
        costs, spent = problem.costs(rows), problem.bytes(rows)
        open_rows = [
            row for row in _others(problem, rows) if problem.allows([*rows, row])
        ]
        worth = {
            row: gain / max(1, problem.bytes([*rows, row]) - spent)
            if per_byte
            else gain
            for row in open_rows
            if (gain := problem.gain(row, costs)) > 0
        }
        if not worth:
            return rows
        rows.append(max(worth, key=worth.__getitem__))


def _exchanged(problem: Problem, rows: list[int]) -> list[int]:
    """Exchanges single rows as long as the cost decreases."""
    cost = problem.cost(rows)
    while True:
        better = None
        for out in [row for row in rows if row not in problem.kept]:
            rest = [row for row in rows if row != out]
            costs = problem.costs(rest)
            total = sum(costs)
            for row in _others(problem, rows):
                reached = total - problem.gain(row, costs)
                if reached < cost and problem.allows([*rest, row]):
                    better, cost = [*rest, row], reached
        if better is None:
            return rows
        rows = better


@dataclass
class _Search:
    """Depth-first branch and bound; `left` is the remaining number of table reads."""

    problem: Problem
    rows: list[int]
    cost: Cost
    left: int

    def descend(
        self, chosen: list[int], costs: list[Cost], candidates: list[int]
    ) -> None:
        """Searches every choice that adds candidates to the chosen rows."""
        total = sum(costs)
        if total < self.cost:
            self.rows, self.cost = chosen, total
        gains = self._gains(chosen, costs, candidates)
        open_rows = sorted(gains, key=gains.__getitem__, reverse=True)
        least = sum(self.problem.costs(open_rows, costs))
        while open_rows and self.left >= 0 and least < self.cost:
            if total - self._largest_gain(chosen, open_rows, gains) >= self.cost:
                return
            row = open_rows.pop(0)
            self.descend([*chosen, row], self.problem.costs([row], costs), open_rows)

    def _gains(
        self, chosen: list[int], costs: list[Cost], candidates: list[int]
    ) -> dict[int, Cost]:
        """The savings of the candidates that the limits allow."""
        gains = {}
        for row in candidates:
            self.left -= 2 * len(costs)
            if self.problem.allows([*chosen, row]):
                gain = self.problem.gain(row, costs)
                if gain > 0:
                    gains[row] = gain
        return gains

    def _largest_gain(
        self, chosen: list[int], rows: list[int], gains: dict[int, Cost]
    ) -> Cost:
        """An upper bound on the saving of further rows within the limits.

        For the limit on captures, the largest gains; for the budget, the largest gains
        per byte, the last one in part.
        """
        problem = self.problem
        gain = sum(gains[row] for row in rows)
        if problem.captures is not None:
            most = problem.captures - len(chosen)
            gain = min(gain, sum(gains[row] for row in rows[:most]))
        if problem.budget_bytes is not None:
            gain = min(gain, self._largest_gain_in_budget(chosen, rows, gains))
        return gain

    def _largest_gain_in_budget(
        self, chosen: list[int], rows: list[int], gains: dict[int, Cost]
    ) -> Cost:
        assert self.problem.budget_bytes is not None
        own_bytes = self.problem.own_bytes
        room = self.problem.budget_bytes - self.problem.bytes(chosen)
        gain: Cost = 0
        for row in sorted(rows, key=lambda row: own_bytes[row] / gains[row]):
            if own_bytes[row] > room:
                return gain - (-gains[row] * room // own_bytes[row])  # rounded up
            gain += gains[row]
            room -= own_bytes[row]
        return gain
