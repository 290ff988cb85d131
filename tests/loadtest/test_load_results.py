"""What is concluded from requests: the cold phase, the verdict, whether it kept up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from virtual_server import Service, VirtualServer, result

from torchproof.measure.loadtest import LoadOptions
from torchproof.measure.loadtest.rate_search import PRECISION, RateSearch
from torchproof.measure.loadtest.results import first_unknown, kept_up
from torchproof.measure.loadtest.timetable import Timetable, draw
from torchproof.records import LatencyObjective, LoadResult, Requests

OBJECTIVE = LatencyObjective(99, 50)


def evenly(count: int, call: tuple[int, ...] = ()) -> Timetable:
    """A request every 100 ms."""
    times = tuple(number / 10 for number in range(count))
    return Timetable(times, call or (0,) * count, count / 10)


def compiles_once_per_call(first_s: float, later_s: float) -> Service:
    known: set[int] = set()

    def service(call: int, count: int) -> float:
        if call in known:
            return later_s
        known.add(call)
        return first_s

    return service


def handled(
    table: Timetable, ends: Sequence[float | None], **outcome: tuple[int, ...]
) -> Requests:
    """Requests of one worker that begin when the one before ended."""
    begins: list[float | None] = []
    free = 0.0
    for arrival, end in zip(table.arrival_s, ends, strict=True):
        begins.append(None if end is None else max(arrival, free))
        free = free if end is None else end
    return Requests(table.arrival_s, tuple(begins), tuple(ends), table.call, **outcome)


# Every call at first takes 500 ms; the second kind arrives at 1 s.
TWO_KINDS = evenly(600, tuple(int(number == 10) for number in range(600)))
SERVED: dict[str, tuple[Timetable, Service, bool]] = {
    "two kinds of calls compile": (TWO_KINDS, compiles_once_per_call(0.5, 0.02), True),
    "one long stall, no cold phase": (
        evenly(600),
        compiles_once_per_call(5.0, 0.02),
        False,
    ),
    "slow, no cold phase": (evenly(600), lambda call, count: 0.5, False),
    "quick, no cold phase": (evenly(600), lambda call, count: 0.02, False),
    "slow, the cold phase does not end": (evenly(300), lambda call, count: 0.5, True),
    **{
        f"50 requests/s of {ms} ms": (
            draw(LoadOptions(rate=50, requests=2000, seed=2), [1]),
            lambda call, count, ms=ms: ms / 1000,
            True,
        )
        for ms in (5, 18, 25)
    },
}
FOUR, LATE = Timetable((0.0, 1.0, 2.0, 3.0), (0,) * 4, 4.0), (2.0, 3.0)
ENDS = (0.1, 1.1, 2.5, 3.1)
TWO_CALLS = replace(FOUR, call=(0, 1, 0, 1))
REJECTED = tuple(range(5, 500, 10))
HANDLED: dict[str, tuple[Timetable, Requests]] = {
    "no failure": (FOUR, handled(FOUR, ENDS)),
    "a failure is no answer": (FOUR, handled(FOUR, ENDS, failed=(0, 1))),
    "all fail": (FOUR, handled(FOUR, ENDS, failed=(0, 1, 2, 3))),
    "a call always fails": (TWO_CALLS, handled(TWO_CALLS, ENDS, failed=(1, 3))),
    "the first request arrives at 2 s": (
        Timetable(LATE, (0, 0), 4.0),
        handled(Timetable(LATE, (0, 0), 4.0), (2.01, 3.01)),
    ),
    "one in ten is rejected": (
        evenly(500),
        handled(
            evenly(500),
            [None if n in REJECTED else n / 10 + 0.01 for n in range(500)],
            rejected=REJECTED,
        ),
    ),
}


def facts(name: str, found: LoadResult) -> list[str]:
    def rounded(value: float | None) -> str:
        return "-" if value is None else f"{round(value, 6):.4g}"

    counts = found.answered, found.failed, found.rejected, found.unserved
    rows = found.latency, found.all_latency, found.queueing, found.service
    lines = [
        f"{name}: {found.verdict}, {found.needed} needed, kept up: {found.kept_up}",
        f"answered, failed, rejected, unserved: {counts}",
        f"goodput: {rounded(found.goodput_rate)} of {rounded(found.offered_rate)}/s",
        "p50 and p99 of latency, with the cold phase, of queueing and service: "
        + ", ".join(rounded(row[i].value_ms) for row in rows for i in (0, 2)),
    ]
    if cold := found.cold:
        after = found.first_answer_after_s, found.objective_met_after_s
        lines += [
            f"cold: {cold.requests} requests until {rounded(cold.end_s)} s,"
            f" {cold.missed} missed; first answer and objective met after "
            + " and ".join(map(rounded, after))
        ]
    return lines


def test_results_are_as_they_were(
    tmp_path: Path, snapshot: Callable[[str, str], None]
) -> None:
    runs = [
        (name, table, VirtualServer(tmp_path, service).serve(table), cold)
        for name, (table, service, cold) in SERVED.items()
    ]
    runs += [(name, *handled, True) for name, handled in HANDLED.items()]
    lines = []
    for name, table, requests, cold in runs:
        found = result(requests, table, OBJECTIVE, cold=cold)
        lines.append("\n    ".join(facts(name, found)))
    snapshot("load-results.txt", "\n".join(lines) + "\n")


def test_the_requests_needed_include_those_of_the_cold_phase(tmp_path: Path) -> None:
    def measured(count: int) -> LoadResult:
        server = VirtualServer(tmp_path, compiles_once_per_call(0.5, 0.02))
        requests, table = server.serve(evenly(count)), evenly(count)
        return result(requests, table, OBJECTIVE)

    few = measured(400)
    assert few.verdict == "undecided" and few.needed is not None
    assert measured(few.needed).verdict == "met"
    assert measured(few.needed - 1).verdict == "undecided"


def test_the_percentile_of_the_objective_is_measured(tmp_path: Path) -> None:
    table = evenly(200)
    requests = VirtualServer(tmp_path, lambda call, count: 0.02).serve(table)
    p95 = LatencyObjective(95, 50)
    measured = result(requests, table, p95, cold=False)
    for rows in (measured.latency, measured.service, measured.all_latency):
        assert [row.percent for row in rows] == [50, 90, 95, 99, 99.9]
        assert rows[2].value_ms == pytest.approx(20)


def test_an_interrupt_leaves_out_who_waited_as_usual() -> None:
    five = Timetable((0.00, 0.01, 0.02, 0.03, 0.04), (0,) * 5, 1.0)
    usual = handled(five, [0.02, 0.04, 0.06, None, None])
    assert first_unknown(usual, 0.05, None) == 3
    # The fourth has been served for 10 s: whoever waited behind it is a result.
    six = replace(five, arrival_s=(*five.arrival_s, 9.9), call=(0,) * 6)
    stuck = handled(six, [0.02, 0.04, 0.06, None, None, None])
    assert first_unknown(stuck, 10.0, None) == 6
    assert first_unknown(stuck, 10.0, LatencyObjective(99, 500)) == 5
    assert first_unknown(handled(evenly(1), [None]), 5.0, None) == 1


def test_a_full_batch_before_its_window_ends_is_no_queue() -> None:
    table = evenly(40)
    requests = handled(table, [arrival + 0.01 for arrival in table.arrival_s])
    assert kept_up(requests, table.length_s, window_s=0.25) is True


# -- the highest rate ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "objective"),
    [
        (3.0, OBJECTIVE),
        (5000.0, OBJECTIVE),
        # 28 requests decide p50, but a queue needs longer to exceed a generous limit.
        (30.0, LatencyObjective(50, 500)),
    ],
)
def test_the_highest_rate_of_a_server_with_constant_arrivals(
    tmp_path: Path, first: float, objective: LatencyObjective
) -> None:
    """It answers each request in 10 ms: up to 100 requests per second."""
    found = search(tmp_path, 0.01, first, objective)
    assert found.highest is not None
    assert 100 / PRECISION <= found.highest <= 101 * PRECISION
    assert found.highest <= 101 or objective != OBJECTIVE
    assert all(t.verdict == "met" for t in found.trials if t.rate <= found.highest)
    assert found.lowest_missed / found.highest <= PRECISION


def test_a_server_that_always_misses_has_no_highest_rate(tmp_path: Path) -> None:
    found = search(tmp_path, 0.06, 10.0, OBJECTIVE)
    assert found.highest is None and found.is_hopeless
    assert [trial.verdict for trial in found.trials] == ["missed"]


def search(
    folder: Path, service_s: float, first: float, objective: LatencyObjective
) -> RateSearch:
    options = LoadOptions(rate=first, arrivals="constant", requests=1)
    server = VirtualServer(folder, lambda call, count: service_s)

    def measure(rate: float, requests: int) -> LoadResult:
        table = draw(options, [1], rate=rate, requests=requests)
        served = server.serve(table)
        return result(served, table, objective, cold=False)

    found = RateSearch(objective, measure)
    found.run(first)
    return found
