"""Chooses the sizes to capture, exactly, if one dimension varies.

Takes a `Problem` whose rows are sorted by size, so that each call goes to the next
larger chosen row. Returns the rows with the least total cost, by dynamic programming
with a bound on the remaining cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchproof.runtime.cudagraph.size_selection import Cost, Problem, greedy

_ROUNDING = 1e-9  # relative tolerance for sums that are compared with a bound
_TRIALS = 30  # prices to try for each limit


@dataclass(frozen=True)
class _Line:
    """The cost of a choice as a sum of segments.

    `segments[row][start]` is the cost in `row` of the columns whose smallest row is in
    `start..row`. `left[row]` is the eager cost of the columns from `row` on.
    """

    problem: Problem
    segments: list[list[Cost]]
    left: list[Cost]

    @classmethod
    def of(cls, problem: Problem, first: Sequence[int]) -> _Line:
        count = len(problem.padded)
        groups: list[list[Cost]] = [[0] * (row + 1) for row in range(count)]
        eager: list[Cost] = [0] * count
        for column, group in enumerate(first):
            eager[group] += problem.eager[column]
            for row in range(group, count):
                groups[row][group] += problem.padded[row][column]
        return cls(problem, [_sums_from(group) for group in groups], _sums_from(eager))


def _sums_from(values: Iterable[Cost]) -> list[Cost]:
    """Suffix sums: element i is the sum of all values from i on; the last is 0."""
    return [*accumulate(reversed([*values]), initial=0)][::-1]


@dataclass(frozen=True)
class _Path:
    """One choice of rows for all columns up to `row`, the largest chosen row."""

    row: int
    cost: Cost = 0
    own_bytes: int = 0
    scratch_bytes: int = 0
    captures: int = 0
    before: _Path | None = None

    def rows(self) -> list[int]:
        return [] if self.before is None else [*self.before.rows(), self.row]


@dataclass(frozen=True)
class _Prices:
    """Lagrange multipliers for the limits, which give a lower bound on the cost.

    `rest[row]` is the least cost plus price of all columns from `row` on, without
    limits. A choice within the limits pays at most the price of the whole limit.
    """

    byte: float
    capture: float
    rest: list[Cost]

    def bound(self, problem: Problem, path: _Path) -> Cost:
        """A lower bound on the cost of every continuation within the limits."""
        paid = self.byte * path.own_bytes + self.capture * path.captures
        scratch = self.byte * path.scratch_bytes
        return path.cost + self.rest[path.row + 1] + paid + scratch - self.all(problem)

    def all(self, problem: Problem) -> float:
        """The price of the limits."""
        return self.byte * (problem.budget_bytes or 0) + self.capture * (
            problem.captures or 0
        )


def along_a_line(problem: Problem, first: Sequence[int]) -> list[int]:
    """The best rows. `first[column]` is the smallest row that fits a column.

    A path is dropped if another path to the same row is no worse in cost and in each
    limited resource, or if its lower bound exceeds the cost of the best known choice.
    """
    line = _Line.of(problem, first)
    prices, best_cost = _priced(line)
    ceiling = best_cost + _ROUNDING * abs(best_cost)
    last_kept = max(problem.kept, default=-1)
    paths = {-1: [_Path(-1)]}
    ends = [(line.left[0], paths[-1][0])] if last_kept < 0 else []
    for row in range(len(line.segments)):
        candidates = _longer(line, paths, row)
        promising = (p for p in candidates if prices.bound(problem, p) <= ceiling)
        paths[row] = _undominated(problem, promising)
        if row >= last_kept:
            ends += [(path.cost + line.left[row + 1], path) for path in paths[row]]
    best = min(ends, key=lambda end: (end[0], end[1].captures, end[1].own_bytes))
    return best[1].rows()


def _longer(line: _Line, paths: dict[int, list[_Path]], row: int) -> Iterator[_Path]:
    """The paths extended to a row, within the limits, without skipping a kept row."""
    problem = line.problem
    captures, budget = problem.captures, problem.budget_bytes
    floor = max((each for each in problem.kept if each < row), default=-1)
    row_bytes = problem.own_bytes[row]
    row_scratch = problem.scratch_bytes[row]
    for start in range(floor, row):
        segment = line.segments[row][start + 1]
        for path in paths[start]:
            own_bytes = path.own_bytes + row_bytes
            scratch_bytes = max(path.scratch_bytes, row_scratch)
            many = captures is not None and path.captures >= captures
            large = budget is not None and own_bytes + scratch_bytes > budget
            if not (many or large):
                yield _Path(
                    row,
                    cost=path.cost + segment,
                    own_bytes=own_bytes,
                    scratch_bytes=scratch_bytes,
                    captures=path.captures + 1,
                    before=path,
                )


def _undominated(problem: Problem, paths: Iterable[_Path]) -> list[_Path]:
    """The paths that no other path beats in cost and in each limited resource."""
    count = problem.captures is not None
    weigh = problem.budget_bytes is not None
    front: list[_Path] = []
    leanest: dict[tuple[int, int], int] = {}  # own bytes, by captures and scratch
    for path in sorted(paths, key=lambda path: (path.cost, path.captures)):
        captures = path.captures if count else 0
        own, scratch = (path.own_bytes, path.scratch_bytes) if weigh else (0, 0)
        if not any(
            bytes_before <= own and before[0] <= captures and before[1] <= scratch
            for before, bytes_before in leanest.items()
        ):
            leanest[captures, scratch] = own
            front.append(path)
    return front


def _priced(line: _Line) -> tuple[_Prices, Cost]:
    """Prices with a high lower bound, and the cost of the best choice so far.

    Bisects one price after the other towards the point where its limit is just met.
    """
    problem = line.problem
    start = _Path(-1)
    best_cost = problem.cost(greedy(problem))
    best = _Prices(0, 0, _cheapest(line, 0, 0)[0])
    limits = {"byte": problem.budget_bytes, "capture": problem.captures}
    for kind, limit in limits.items():
        high = float(line.left[0])
        low = high * 1e-18
        for _ in range(_TRIALS if limit is not None else 0):
            price = math.sqrt(low * high)
            paid = {"byte": best.byte, "capture": best.capture, kind: price}
            rest, rows = _cheapest(line, **paid)
            tried = _Prices(**paid, rest=rest)
            if problem.kept.issubset(rows) and problem.allows(rows):
                best_cost = min(best_cost, problem.cost(greedy(problem, rows)))
            best = max(best, tried, key=lambda prices: prices.bound(problem, start))
            used = problem.bytes(rows) if kind == "byte" else len(rows)
            low, high = (price, high) if used > (limit or 0) else (low, price)
    return best, best_cost


def _cheapest(line: _Line, byte: float, capture: float) -> tuple[list[Cost], list[int]]:
    """The least cost plus price from each row on, and the rows of the best choice."""
    count = len(line.segments)
    prices = [byte * own + capture for own in line.problem.own_bytes]
    rest: list[Cost] = [0] * (count + 1)
    chosen = [count] * (count + 1)  # the next chosen row; `count` means none
    for start in range(count - 1, -1, -1):
        ways = [
            (line.segments[row][start] + prices[row] + rest[row + 1], row)
            for row in range(start, count)
        ]
        rest[start], chosen[start] = min([*ways, (line.left[start], count)])
    rows, row = [], chosen[0]
    while row < count:
        rows.append(row)
        row = chosen[row + 1]
    return rest, rows
