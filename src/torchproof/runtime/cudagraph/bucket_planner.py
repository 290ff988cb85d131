"""The bucket planner: takes the sizes of calls, returns the sizes to capture.

A size is a tuple with one number for each varying dimension, such as batch and length.
A call is padded to the cheapest bucket that is large enough. `plan` chooses the buckets
with the least padded work, within limits on their number and memory.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy

from torchproof.records import UserError
from torchproof.runtime.cudagraph.size_choice import Numbers, Problem, choose

Size = tuple[int, ...]
Work = Callable[[Size], float]

# The most candidates in several dimensions. If there are more, every second number of
# a dimension is left out.
_MOST_CANDIDATES = 400


@dataclass(frozen=True)
class Memory:
    """The memory of captures in bytes, measured for some sizes, estimated for others.

    `own` is memory that one capture uses alone, such as its inputs and outputs.
    Captures of one pool share the rest, `scratch`, whose size is that of the largest
    capture. For a capture with a separate pool, all memory is in `own`.
    """

    own: Mapping[Size, int]
    scratch: Mapping[Size, int] = field(default_factory=dict)

    def own_bytes(self, size: Size) -> int:
        return _estimated(self.own, size)

    def scratch_bytes(self, size: Size) -> int:
        return _estimated(self.scratch, size)


def _estimated(measured: Mapping[Size, int], size: Size) -> int:
    """The measured bytes of a size, else a linear estimate over the volume.

    The line has the least-squares slope and lies on or above all measured points, so
    that it overestimates. With one measured size, the bytes grow in proportion.
    """
    if not measured or size in measured:
        return measured.get(size, 0)
    points = [(math.prod(each), amount) for each, amount in measured.items()]
    mean_volume = sum(volume for volume, _ in points) / len(points)
    mean_bytes = sum(amount for _, amount in points) / len(points)
    spread = sum((volume - mean_volume) ** 2 for volume, _ in points)
    if not spread:
        most = max(amount for _, amount in points)
        return math.ceil(most * math.prod(size) / mean_volume)
    tilt = sum((v - mean_volume) * (b - mean_bytes) for v, b in points)
    slope = max(0.0, tilt / spread)
    fixed = max(0.0, *(amount - slope * volume for volume, amount in points))
    return math.ceil(fixed + slope * math.prod(size))


@dataclass(frozen=True)
class Bucket:
    """A size to capture, and the totals of the calls that are padded to it."""

    size: Size
    hits: int = 0
    useful_work: float = 0
    padded_work: float = 0
    pool_bytes: int | None = None

    @property
    def waste(self) -> float | None:
        """The work on padding relative to the useful work; None without calls."""
        return self.padded_work / self.useful_work - 1 if self.useful_work else None

    def plus(self, count: int, useful: float, padded: float) -> Bucket:
        return dataclasses.replace(
            self,
            hits=self.hits + count,
            useful_work=self.useful_work + count * useful,
            padded_work=self.padded_work + count * padded,
        )

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "size": [*self.size], "waste": self.waste}


@dataclass(frozen=True)
class Buckets:
    """The sizes to capture, in order of their work.

    `left_out` has the observed sizes that fit no bucket, with their number of calls.
    `scratch_bytes` is the memory that the captures share, or None if it is unknown.
    """

    buckets: tuple[Bucket, ...]
    names: tuple[str, ...]
    left_out: Mapping[Size, int] = field(default_factory=dict)
    scratch_bytes: int | None = None
    eager_cost: float | None = None
    work: Work = field(default=math.prod, repr=False, compare=False)

    @property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(bucket.size for bucket in self.buckets)

    def bucket_for(self, size: int | Size) -> Size | None:
        """The cheapest bucket for a size, whether it was observed or not.

        None if every bucket is too small, or if padding costs more than eager: such a
        call runs in eager, or is captured at its own size.
        """
        needed = _as_size(size)
        for bucket in self.sizes:
            if _takes(bucket, needed):
                eager_work = _eager_work(needed, self.work, self.eager_cost)
                return None if self.work(bucket) > eager_work else bucket
        return None

    @property
    def waste(self) -> float | None:
        """The waste over all replayed calls; None without any."""
        useful = sum(bucket.useful_work for bucket in self.buckets)
        padded = sum(bucket.padded_work for bucket in self.buckets)
        return padded / useful - 1 if useful else None

    @property
    def pool_bytes(self) -> int | None:
        """The memory of all captures; None unless the bytes of each are known."""
        each = [bucket.pool_bytes for bucket in self.buckets]
        known = [amount for amount in each if amount is not None]
        if len(known) < len(each) or self.scratch_bytes is None:
            return None
        return sum(known) + self.scratch_bytes

    def counted(self, observed: Mapping[Any, int]) -> Buckets:
        """The same buckets with the hits and the waste of these calls."""
        sizes = _as_sizes(observed)
        buckets = {
            each.size: Bucket(each.size, pool_bytes=each.pool_bytes)
            for each in self.buckets
        }
        assigned = {size: self.bucket_for(size) for size in sizes}
        for size, bucket in assigned.items():
            if bucket is not None:
                useful, padded = self.work(size), self.work(bucket)
                buckets[bucket] = buckets[bucket].plus(sizes[size], useful, padded)
        left_out = {
            size: sizes[size] for size, into in assigned.items() if into is None
        }
        return dataclasses.replace(
            self, buckets=tuple(buckets.values()), left_out=left_out
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "names": [*self.names],
            "buckets": [bucket.to_json() for bucket in self.buckets],
            "left_out": [{"size": [*s], "calls": n} for s, n in self.left_out.items()],
            "waste": self.waste,
            "pool_bytes": self.pool_bytes,
            "scratch_bytes": self.scratch_bytes,
        }

    def __str__(self) -> str:
        """A table with a row for each bucket, and one for the total."""
        rows = [(" x ".join(self.names), "hits", "waste", "pool bytes")]
        rows += [
            (shown(b.size), str(b.hits), _percent(b.waste), _amount(b.pool_bytes))
            for b in self.buckets
        ]
        if self.scratch_bytes:
            rows.append(("shared", "", "", _amount(self.scratch_bytes)))
        hits = sum(bucket.hits for bucket in self.buckets)
        total = (str(hits), _percent(self.waste), _amount(self.pool_bytes))
        rows.append(("all", *total))
        if self.left_out:
            rows.append(("no bucket", str(sum(self.left_out.values())), "", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def plan(
    observed: Mapping[Any, int],
    *,
    names: Sequence[str] | None = None,
    captures: int | None = None,
    budget_bytes: int | None = None,
    memory: Memory | None = None,
    multiple_of: int | Sequence[int] = 1,
    captured: Iterable[int | Size] = (),
    work: Work = math.prod,
    eager_cost: float | None = None,
) -> Buckets:
    """Chooses the buckets that serve the most calls with the least padded work.

    `observed` has the number of calls of each size. There are at most `captures`
    buckets, which need at most `budget_bytes` according to `memory`. Sizes in
    `captured` are always buckets. `work` must not decrease when a size grows; by
    default it is the product of the size. `eager_cost` is the cost of an eager call
    relative to a replay of the same size; with it, a call is padded only if that is
    cheaper than eager.
    """
    sizes = _as_sizes(observed)
    required = tuple(map(_as_size, captured))
    dimensions = _dimensions([*sizes, *required], names)
    _refuse_limits(captures, budget_bytes, memory)
    steps = _steps(multiple_of, dimensions)
    rows = _candidates([*sizes], steps) | {*required}
    rows |= _measured(memory, [*sizes], steps)
    ordered = sorted(rows, key=lambda row: (work(row), row))
    problem = Problem(
        *_costs(sizes, ordered, work, eager_cost),
        numpy.array([memory.own_bytes(row) if memory else 0 for row in ordered]),
        numpy.array([memory.scratch_bytes(row) if memory else 0 for row in ordered]),
        kept=[ordered.index(row) for row in dict.fromkeys(required)],
        captures=captures,
        budget_bytes=budget_bytes,
    )
    chosen = choose(problem)
    return Buckets(
        tuple(
            Bucket(ordered[i], pool_bytes=int(problem.own_bytes[i]) if memory else None)
            for i in chosen
        ),
        tuple(names or (f"dim{i}" for i in range(dimensions))),
        scratch_bytes=problem.scratch(chosen) if memory else None,
        eager_cost=eager_cost,
        work=work,
    ).counted(sizes)


def _costs(
    sizes: Mapping[Size, int], rows: list[Size], work: Work, eager_cost: float | None
) -> tuple[Numbers, Numbers]:
    """The cost of the calls of each size: in eager, and in each row."""
    if not sizes or not rows:
        return numpy.zeros(len(sizes)), numpy.zeros((len(rows), len(sizes)))
    counts = numpy.array([*sizes.values()], dtype=float)
    works = numpy.array([work(row) for row in rows], dtype=float)
    # More than all padding together: a call is left out only if no bucket fits.
    most = 1 + counts.sum() * works.max()
    eager = numpy.array(
        [min(most, _eager_work(size, work, eager_cost)) for size in sizes]
    )
    fits = (numpy.array(rows)[:, None] >= numpy.array([*sizes])).all(axis=2)
    useful = numpy.array([work(size) for size in sizes], dtype=float)
    for i, j in numpy.argwhere(fits & (works[:, None] < useful)):
        raise UserError(
            f"the work of {shown([*sizes][j])} is {useful[j]:g}, but that of the larger"
            f" {shown(rows[i])} is {works[i]:g}: `work` must not decrease"
        )
    padded = numpy.where(fits, numpy.minimum(works[:, None], eager), eager)
    return eager * counts, padded * counts


def _eager_work(size: Size, work: Work, eager_cost: float | None) -> float:
    return math.inf if eager_cost is None else eager_cost * work(size)


def _candidates(sizes: list[Size], steps: Size) -> set[Size]:
    """The sizes to choose from.

    A bucket that is larger than all its calls in a dimension could be smaller. So each
    number of a candidate was observed, rounded up to its step.
    """
    aligned = [
        tuple(
            -(-number // step) * step for number, step in zip(size, steps, strict=True)
        )
        for size in sizes
    ]
    numbers = [sorted({*column}) for column in zip(*aligned, strict=True)]
    while len(numbers) > 1 and math.prod(map(len, numbers)) > _MOST_CANDIDATES:
        longest = max(range(len(numbers)), key=lambda i: len(numbers[i]))
        # every second number, including the last
        numbers[longest] = numbers[longest][::-2][::-1]
    return {
        row for row in product(*numbers) if any(_takes(row, size) for size in aligned)
    }


def _measured(memory: Memory | None, sizes: list[Size], steps: Size) -> set[Size]:
    """Sizes with measured memory, which may be less than a smaller size's estimate."""
    measured = {*memory.own, *memory.scratch} if memory else set()
    return {
        size
        for size in measured
        if not any(map(operator.mod, size, steps))
        and any(_takes(size, other) for other in sizes)
    }


def _takes(bucket: Size, size: Size) -> bool:
    return all(map(operator.ge, bucket, size))


def _as_size(size: int | Size) -> Size:
    numbers = (size,) if isinstance(size, int) else tuple(size)
    if not numbers or any(number < 1 for number in numbers):
        raise UserError(f"{size!r} is not a size: numbers must be positive")
    return numbers


def _as_sizes(observed: Mapping[Any, int]) -> dict[Size, int]:
    """The sizes with their calls, sorted."""
    sizes = {_as_size(size): count for size, count in observed.items()}
    for size, count in sizes.items():
        if count < 1:
            raise UserError(
                f"{shown(size)} was observed {count} times: the count must be positive"
            )
    return dict(sorted(sizes.items()))


def _dimensions(sizes: Sequence[Size], names: Sequence[str] | None) -> int:
    """The number of dimensions, which must be the same for all sizes."""
    counts = {len(size) for size in sizes} | ({len(names)} if names else set())
    if len(counts) > 1:
        lengths = " and ".join(map(str, sorted(counts)))
        raise UserError(f"sizes with {lengths} numbers: use one number per dimension")
    return counts.pop() if counts else 1


def _steps(multiple_of: int | Sequence[int], dimensions: int) -> Size:
    steps = (multiple_of,) * dimensions if isinstance(multiple_of, int) else multiple_of
    if len(steps) != dimensions or any(step < 1 for step in steps):
        raise UserError(
            f"multiple_of={multiple_of!r}: must be a positive number, or one for each"
            f" of {dimensions} dimensions"
        )
    return tuple(steps)


def _refuse_limits(
    captures: int | None, budget_bytes: int | None, memory: Memory | None
) -> None:
    if captures is not None and captures < 1:
        raise UserError(f"captures={captures}: must be at least 1")
    if budget_bytes is not None and budget_bytes < 1:
        raise UserError(f"budget_bytes={budget_bytes}: must be at least 1")
    if budget_bytes is not None and memory is None:
        raise UserError("budget_bytes needs memory, which has the bytes of some sizes")


def shown(size: Size) -> str:
    return "x".join(map(str, size))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _amount(value: int | None) -> str:
    if value is None:
        return "-"
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= one:
            return f"{value / one:.1f} {unit}"
    return f"{value} B"
