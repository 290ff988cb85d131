"""Which of many sizes to capture, so that all calls together cost least.

In goes what every call would cost in each of them; out come those to choose. A call
costs what the cheapest chosen row that takes it costs, or what it costs in eager. Rows
need no order here; `line` is for rows that grow, each taking more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Cost = float  # sums of whole numbers are exact

# Entries of tables that `among_many` may look at to prove that nothing is better.
PROOF_LIMIT = 2_000_000


@dataclass(frozen=True)
class Problem:
    """Sizes to choose from in rows, observed sizes in columns, and the limits.

    `padded[row][column]` is the cost of a column's calls in a row; where the row does
    not take them, what they cost in eager. `kept` are rows that are chosen in any case.
    """

    eager: Sequence[Cost]
    padded: Sequence[Sequence[Cost]]
    own_bytes: Sequence[int]  # of each row
    scratch_bytes: Sequence[int]  # chosen rows share what the largest of them needs
    captures: int | None = None
    budget_bytes: int | None = None
    kept: frozenset[int] = frozenset()

    def allows(self, rows: Sequence[int]) -> bool:
        if self.captures is not None and len(rows) > self.captures:
            return False
        return self.budget_bytes is None or self.bytes(rows) <= self.budget_bytes

    def limited(self, captures: int | None, budget_bytes: int | None) -> Problem:
        """With these limits, which what is kept already does not exceed."""
        kept = [*self.kept]
        return dataclasses.replace(
            self,
            captures=captures and max(captures, len(kept)),
            budget_bytes=budget_bytes and max(budget_bytes, self.bytes(kept)),
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
        """What the calls of each column cost, if they cost `costs` without the rows."""
        lists = [costs or self.eager, *(self.padded[row] for row in rows)]
        return [min(column) for column in zip(*lists, strict=True)]

    @cached_property
    def cheaper(self) -> list[list[tuple[int, Cost]]]:
        """Of each row, the columns that cost less there than in eager."""
        return [
            [(c, cost) for c, cost in enumerate(row) if cost < self.eager[c]]
            for row in self.padded
        ]

    def gain(self, row: int, costs: Sequence[Cost]) -> Cost:
        """What one more row would save."""
        return sum(costs[c] - cost for c, cost in self.cheaper[row] if cost < costs[c])


def among_many(problem: Problem) -> tuple[list[int], bool]:
    """Rows that are good, and whether they are proved to be the best.

    Greedy choice, then exchanges, then branch and bound. What several rows save
    together is at most what each saves alone: that bounds what any choice can reach.
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
    """Rows added one by one to those given: by what each saves, or saves per byte."""
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
    """One row for another, as long as that helps."""
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
    """Depth first; `left` counts down what may be looked at, and goes below zero."""

    problem: Problem
    rows: list[int]
    cost: Cost
    left: int

    def descend(
        self, chosen: list[int], costs: list[Cost], candidates: list[int]
    ) -> None:
        """Every choice that adds some of the candidates to those chosen."""
        total = sum(costs)
        if total < self.cost:
            self.rows, self.cost = chosen, total
        gains = self._gains(chosen, costs, candidates)
        open_rows = sorted(gains, key=gains.__getitem__, reverse=True)
        least = sum(self.problem.costs(open_rows, costs))
        while open_rows and self.left >= 0 and least < self.cost:
            if total - self._reach(chosen, open_rows, gains) >= self.cost:
                return
            row = open_rows.pop(0)
            self.descend([*chosen, row], self.problem.costs([row], costs), open_rows)

    def _gains(
        self, chosen: list[int], costs: list[Cost], candidates: list[int]
    ) -> dict[int, Cost]:
        """Of the candidates that may be added and save something."""
        found = {}
        for row in candidates:
            self.left -= 2 * len(costs)
            if self.problem.allows([*chosen, row]):
                gain = self.problem.gain(row, costs)
                if gain > 0:
                    found[row] = gain
        return found

    def _reach(
        self, chosen: list[int], rows: list[int], gains: dict[int, Cost]
    ) -> Cost:
        """The most that further rows could save: no choice within the limits does more.

        By the limit on captures, the largest gains; by the budget, the gains that are
        largest per byte, the last of them in part.
        """
        problem, reach = self.problem, sum(gains[row] for row in rows)
        if problem.captures is not None:
            most = problem.captures - len(chosen)
            reach = min(reach, sum(gains[row] for row in rows[:most]))
        if problem.budget_bytes is not None:
            reach = min(reach, self._reach_in_bytes(chosen, rows, gains))
        return reach

    def _reach_in_bytes(
        self, chosen: list[int], rows: list[int], gains: dict[int, Cost]
    ) -> Cost:
        assert self.problem.budget_bytes is not None
        own = self.problem.own_bytes
        room = self.problem.budget_bytes - self.problem.bytes(chosen)
        reach: Cost = 0
        for row in sorted(rows, key=lambda row: own[row] / gains[row]):
            if own[row] > room:
                return reach - (-gains[row] * room // own[row])  # rounded up
            reach, room = reach + gains[row], room - own[row]
        return reach
