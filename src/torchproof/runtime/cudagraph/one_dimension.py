"""The sizes to capture where one dimension varies: rows that grow, the best exactly.

In comes a `Problem` whose rows take all that the rows before them take, so that calls
are taken by the next larger row chosen. Out come the rows under which all calls cost
least: dynamic programming, with a bound on what is still to come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchproof.runtime.cudagraph.size_selection import Cost, Problem, greedy

_ROUNDING = 1e-9  # of the sums that are compared with a bound
_TRIALS = 30  # prices of each limit


@dataclass(frozen=True)
class _Line:
    """What a choice costs, piece by piece.

    `segments[row][start]` is the cost in `row` of the columns whose smallest row lies
    from `start` up to it; `left[row]` that of the columns from `row` on, in eager.
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
    """`[i]`: the sum of all values from the i-th on, at the end 0."""
    return [*accumulate(reversed([*values]), initial=0)][::-1]


@dataclass(frozen=True)
class _Path:
    """One way to take all columns up to a row, which is the largest one chosen."""

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
    """What is limited, at a price instead: less than this no choice can cost.

    `rest[row]` is the least cost and price of all from a row on, if limits are no
    matter. Within the limits, the price paid is at most that of the whole limit.
    """

    byte: float
    capture: float
    rest: list[Cost]

    def bound(self, problem: Problem, path: _Path) -> Cost:
        """What every continuation of a path within the limits costs at least."""
        paid = self.byte * path.own_bytes + self.capture * path.captures
        scratch = self.byte * path.scratch_bytes
        return path.cost + self.rest[path.row + 1] + paid + scratch - self.all(problem)

    def all(self, problem: Problem) -> float:
        """The price of the limits themselves."""
        return self.byte * (problem.budget_bytes or 0) + self.capture * (
            problem.captures or 0
        )


def along_a_line(problem: Problem, first: Sequence[int]) -> list[int]:
    """The best rows. `first[column]` is the smallest row that takes a column.

    Of two paths to a row, one goes if the other is no worse in cost and in all that is
    limited. A path also goes if its bound is above what a known choice costs.
    """
    line = _Line.of(problem, first)
    prices, known = _priced(line)
    ceiling = known + _ROUNDING * abs(known)
    last_kept = max(problem.kept, default=-1)
    paths = {-1: [_Path(-1)]}
    ends = [(line.left[0], paths[-1][0])] if last_kept < 0 else []
    for row in range(len(line.segments)):
        found = _longer(line, paths, row)
        promising = (p for p in found if prices.bound(problem, p) <= ceiling)
        paths[row] = _undominated(problem, promising)
        if row >= last_kept:
            ends += [(path.cost + line.left[row + 1], path) for path in paths[row]]
    best = min(ends, key=lambda end: (end[0], end[1].captures, end[1].own_bytes))
    return best[1].rows()


def _longer(line: _Line, paths: dict[int, list[_Path]], row: int) -> Iterator[_Path]:
    """The paths that go on to a row, no kept row left out, within the limits."""
    problem = line.problem
    captures, budget = problem.captures, problem.budget_bytes
    floor = max((kept for kept in problem.kept if kept < row), default=-1)
    own, scratch = problem.own_bytes[row], problem.scratch_bytes[row]
    for start in range(floor, row):
        segment = line.segments[row][start + 1]
        for path in paths[start]:
            own_bytes = path.own_bytes + own
            scratch_bytes = max(path.scratch_bytes, scratch)
            many = captures is not None and path.captures >= captures
            large = budget is not None and own_bytes + scratch_bytes > budget
            if not (many or large):
                yield _Path(
                    row,
                    path.cost + segment,
                    own_bytes,
                    scratch_bytes,
                    path.captures + 1,
                    path,
                )


def _undominated(problem: Problem, paths: Iterable[_Path]) -> list[_Path]:
    """The paths that no other beats in cost and in all that is limited."""
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
    """Prices whose bound is high, and the cost of the best choice met on the way.

    One price after the other is halved towards where its limit is just kept.
    """
    problem, start = line.problem, _Path(-1)
    known = problem.cost(greedy(problem))
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
                known = min(known, problem.cost(greedy(problem, rows)))
            best = max(best, tried, key=lambda prices: prices.bound(problem, start))
            used = problem.bytes(rows) if kind == "byte" else len(rows)
            low, high = (price, high) if used > (limit or 0) else (low, price)
    return best, known


def _cheapest(line: _Line, byte: float, capture: float) -> tuple[list[Cost], list[int]]:
    """The least cost and price from each row on, and the rows chosen from the first."""
    count = len(line.segments)
    prices = [byte * own + capture for own in line.problem.own_bytes]
    rest: list[Cost] = [0] * (count + 1)
    chosen = [count] * (count + 1)  # the next row chosen; `count` stands for none
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
