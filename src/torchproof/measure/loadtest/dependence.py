"""How much less dependent requests tell than independent ones.

A request behind a stall is slow because the one before it was. When a request finds a
worker idle, the queue starts afresh: what happens from then on hardly depends on what
was before. The requests up to the next such moment are a cycle. Cycles, not requests,
are the independent observations (the regenerative method for queues), and the variance
of a share between cycles says how many independent requests a test is worth.

Slow requests also follow each other where none waits for another: something else slows
all of them down for a while. So a sequence of slow requests counts as one observation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import groupby, pairwise

from torchproof.records import Requests

_LEAST_CYCLES = 20  # with fewer, blocks of equal length take their place


def cycle_starts(requests: Requests, workers: int = 1) -> list[int]:
    """The numbers of the requests that found a worker idle, in order; 0 is one."""
    busy: list[float] = []  # the ends of the requests in the system
    rejected = {*requests.rejected}
    starts = []
    for number, arrival in enumerate(requests.arrival_s):
        while busy and busy[0] <= arrival:
            heapq.heappop(busy)
        if not number or len(busy) < workers:
            starts.append(number)
        end = requests.end_s[number]
        if end is not None:
            heapq.heappush(busy, end)
        elif number not in rejected:
            heapq.heappush(busy, math.inf)
    return starts


def design_effect(over: Sequence[bool], starts: Sequence[int]) -> float:
    """How many dependent requests are worth one independent one, for a share.

    `over` says which requests count, and `starts` where cycles begin.
    """
    count, hits = len(over), sum(over)
    if not 0 < hits < count:
        return 1.0
    if len(starts) < _LEAST_CYCLES:
        starts = [number * count // _LEAST_CYCLES for number in range(_LEAST_CYCLES)]
    share = hits / count
    squares = sum(
        (sum(over[begin:end]) - share * (end - begin)) ** 2
        for begin, end in pairwise([*starts, count])
    )
    return max(1.0, squares / (count * share * (1 - share)))


def burst_effect(over: Sequence[bool]) -> float:
    """The design effect if requests in a row that count are one observation.

    Independent requests follow each other by chance; they give 1 on average.
    """
    count, hits = len(over), sum(over)
    if not 0 < hits < count:
        return 1.0
    share = hits / count
    lengths = [sum(1 for _ in burst) for late, burst in groupby(over) if late]
    squares = sum(length**2 for length in lengths) * (1 - share) ** 2
    squares += (count - hits) * share**2
    by_chance = 1 + 2 * share
    return max(1.0, squares / (count * share * (1 - share)) / by_chance)
