"""What is concluded from requests: the cold phase, the verdict, whether it kept up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from virtual_server import Service, VirtualServer

from torchproof.measure.loadtest import LoadOptions, Timetable, draw, result_of
from torchproof.measure.loadtest.rate_search import PRECISION, RateSearch
from torchproof.measure.loadtest.results import cold_phase, first_unknown, kept_up
from torchproof.records import LatencyObjective, LoadResult, Requests

OBJECTIVE = LatencyObjective(99, 50)


def result(
    folder: Path, table: Timetable, service: Service, *, cold: bool = True
) -> LoadResult:
    requests = VirtualServer(folder, service).serve(table)
    return result_of("full", requests, table, objective=OBJECTIVE, cold=cold)


def compiles_once_per_call(first_s: float, later_s: float) -> Service:
    known: set[int] = set()

    def service(call: int, count: int) -> float:
        if call in known:
            return later_s
        known.add(call)
        return first_s

    return service


def test_the_cold_phase_ends_when_all_calls_are_answered_and_none_waits(
    tmp_path: Path,
) -> None:
    # A call every 100 ms; the second kind arrives at 1 s.
    calls = tuple(int(number == 10) for number in range(600))
    table = Timetable(tuple(n / 10 for n in range(600)), calls, 60.0)
    measured = result(tmp_path, table, compiles_once_per_call(0.5, 0.02))
    cold = measured.cold
    assert cold.first_answer_s == pytest.approx(0.5)
    # The second kind is answered at 1.5 s; the last that waits behind it begins later.
    assert cold.end_s == pytest.approx(1.58)
    assert cold.requests == 16
    # Each stall of 0.5 s also delays the five that arrive before the queue is empty.
    assert cold.missed == 12
    assert cold.objective_met_s == pytest.approx(1.6)
    assert measured.verdict == "met"
    assert measured.latency[2].value_ms == pytest.approx(20)
    assert measured.all_latency[2].value_ms > 200
    assert measured.kept_up is True


def test_without_a_cold_phase_every_request_counts(tmp_path: Path) -> None:
    table = Timetable(tuple(n / 10 for n in range(600)), (0,) * 600, 60.0)
    service = compiles_once_per_call(5.0, 0.02)
    measured = result(tmp_path, table, service, cold=False)
    assert measured.cold is None
    assert measured.verdict == "undecided", "one stall, whatever the number of victims"
    slow = result(tmp_path, table, lambda call, count: 0.5, cold=False)
    assert slow.verdict == "missed"
    warm = result(tmp_path, table, lambda call, count: 0.02, cold=False)
    assert warm.verdict == "met"
    assert warm.goodput_rate == pytest.approx(10, rel=0.01)


def test_a_cold_phase_that_does_not_end_misses_the_objective(tmp_path: Path) -> None:
    table = Timetable(tuple(n / 10 for n in range(300)), (0,) * 300, 30.0)
    measured = result(tmp_path, table, lambda call, count: 0.5)
    assert measured.cold.end_s is None
    assert measured.cold.requests is None
    assert measured.cold.objective_met_s is None
    assert measured.verdict == "missed"
    assert measured.latency[0].value_ms is None
    assert measured.kept_up is False


def test_requests_without_an_answer_count_as_over_the_limit() -> None:
    count = 500
    table = Timetable(tuple(n / 10 for n in range(count)), (0,) * count, 50.0)
    begin = tuple(None if n % 10 == 5 else n / 10 for n in range(count))
    end = tuple(None if b is None else b + 0.01 for b in begin)
    rejected = tuple(n for n in range(count) if n % 10 == 5)
    requests = Requests(
        arrival_s=table.arrival_s,
        begin_s=begin,
        end_s=end,
        call=table.call,
        worker=(0,) * count,
        batch=(1,) * count,
        rejected=rejected,
    )
    measured = result_of("full", requests, table, objective=OBJECTIVE, cold=False)
    assert measured.verdict == "missed"
    assert (measured.answered, measured.rejected) == (450, 50)
    assert measured.unserved == 0
    assert measured.kept_up is True
    assert measured.goodput_rate == pytest.approx(9)
    assert measured.service[0].value_ms == pytest.approx(10)


@pytest.mark.parametrize(
    ("service_s", "kept_up"), [(0.005, True), (0.018, True), (0.025, False)]
)
def test_whether_the_queue_grows(
    tmp_path: Path, service_s: float, kept_up: bool
) -> None:
    table = draw(LoadOptions(rate=50, requests=2000, seed=2), [1])
    measured = result(tmp_path, table, lambda call, count: service_s)
    assert measured.kept_up is kept_up


def handled(
    arrivals: list[float], ends: list[float | None], failed: tuple[int, ...] = ()
) -> Requests:
    """Requests of one worker that begin when the one before ended."""
    begins: list[float | None] = []
    free = 0.0
    for arrival, end in zip(arrivals, ends, strict=True):
        begins.append(None if end is None else max(arrival, free))
        free = free if end is None else end
    return Requests(
        arrival_s=tuple(arrivals),
        begin_s=tuple(begins),
        end_s=tuple(ends),
        call=(0,) * len(arrivals),
        worker=(0,) * len(arrivals),
        batch=(1,) * len(arrivals),
        failed=failed,
    )


@pytest.mark.parametrize(
    ("failed", "call", "first_answer_s", "end_s"),
    [
        ((), (0, 0, 0, 0), 0.1, 0.1),
        ((0, 1), (0, 0, 0, 0), 2.5, 2.5),  # a failure is no answer
        ((0, 1, 2, 3), (0, 0, 0, 0), None, None),
        ((1, 3), (0, 1, 0, 1), 0.1, 1.1),  # a call that always fails
    ],
)
def test_failures_and_the_cold_phase(
    failed: tuple[int, ...],
    call: tuple[int, ...],
    first_answer_s: float | None,
    end_s: float | None,
) -> None:
    arrivals = [0.0, 1.0, 2.0, 3.0]
    requests = handled(arrivals, [0.1, 1.1, 2.5, 3.1], failed)
    table = Timetable(tuple(arrivals), call, 4.0)
    phase = cold_phase(replace(requests, call=call), table)
    assert (phase.first_answer_s, phase.end_s) == (first_answer_s, end_s)


def test_waiting_for_the_first_answer_begins_with_the_first_arrival() -> None:
    table = Timetable((2.0, 3.0), (0, 0), 4.0)
    requests = handled([2.0, 3.0], [2.01, 3.01])
    measured = result_of("full", requests, table, objective=OBJECTIVE, cold=True)
    assert measured.first_answer_after_s == pytest.approx(0.01)
    assert measured.objective_met_after_s == 0.0
    without = replace(measured, cold=None)
    assert without.first_answer_after_s is None
    assert without.objective_met_after_s is None


def test_the_requests_needed_include_those_of_the_cold_phase(tmp_path: Path) -> None:
    def measured(count: int) -> LoadResult:
        table = Timetable(tuple(n / 10 for n in range(count)), (0,) * count, count / 10)
        return result(tmp_path, table, compiles_once_per_call(0.5, 0.02))

    few = measured(400)
    assert few.verdict == "undecided" and few.needed is not None
    assert measured(few.needed).verdict == "met"
    assert measured(few.needed - 1).verdict == "undecided"


def test_the_percentile_of_the_objective_is_measured(tmp_path: Path) -> None:
    table = Timetable(tuple(n / 10 for n in range(200)), (0,) * 200, 20.0)
    requests = VirtualServer(tmp_path, lambda call, count: 0.02).serve(table)
    p95 = LatencyObjective(95, 50)
    measured = result_of("full", requests, table, objective=p95, cold=False)
    for rows in (measured.latency, measured.service, measured.all_latency):
        assert [row.percent for row in rows] == [50, 90, 95, 99, 99.9]
        assert rows[2].value_ms == pytest.approx(20)


def test_an_interrupt_leaves_out_who_waited_as_usual() -> None:
    arrivals = [0.00, 0.01, 0.02, 0.03, 0.04]
    usual = handled(arrivals, [0.02, 0.04, 0.06, None, None])
    assert first_unknown(usual, 0.05, None) == 3
    # The fourth has been served for 10 s: whoever waited behind it is a result.
    stuck = handled([*arrivals, 9.9], [0.02, 0.04, 0.06, None, None, None])
    assert first_unknown(stuck, 10.0, None) == 6
    assert first_unknown(stuck, 10.0, LatencyObjective(99, 500)) == 5
    assert first_unknown(handled([0.0], [None]), 5.0, None) == 1


def test_a_full_batch_before_its_window_ends_is_no_queue() -> None:
    arrivals = [n / 10 for n in range(40)]
    requests = handled(arrivals, [arrival + 0.01 for arrival in arrivals])
    table = Timetable(tuple(arrivals), (0,) * 40, 4.0)
    assert kept_up(requests, table, window_s=0.25) is True


# -- the highest rate ------------------------------------------------------------------


def search(
    folder: Path,
    service_s: float,
    arrivals: str,
    first: float,
    objective: LatencyObjective = OBJECTIVE,
) -> RateSearch:
    options = LoadOptions(rate=first, arrivals=arrivals, requests=1)
    server = VirtualServer(folder, lambda call, count: service_s)

    def measure(rate: float, requests: int) -> LoadResult:
        table = draw(options, [1], rate=rate, requests=requests)
        served = server.serve(table)
        return result_of("full", served, table, objective=objective, cold=False)

    found = RateSearch(objective, measure)
    found.run(first)
    return found


@pytest.mark.parametrize("first", [3.0, 5000.0])
def test_the_highest_rate_of_a_server_with_constant_arrivals(
    tmp_path: Path, first: float
) -> None:
    """It answers each request in 10 ms: up to 100 requests per second."""
    found = search(tmp_path, 0.01, "constant", first)
    assert 100 / PRECISION <= found.highest <= 101
    assert all(t.verdict == "met" for t in found.trials if t.rate <= found.highest)
    assert found.lowest_missed / found.highest <= PRECISION


def test_a_short_burst_is_no_capacity(tmp_path: Path) -> None:
    """28 requests decide p50, but a queue needs longer to exceed a generous limit."""
    generous = LatencyObjective(50, 500)
    found = search(tmp_path, 0.01, "constant", 30.0, generous)
    assert 100 / PRECISION <= found.highest <= 101 * PRECISION


def test_a_server_that_always_misses_has_no_highest_rate(tmp_path: Path) -> None:
    found = search(tmp_path, 0.06, "constant", 10.0)
    assert found.highest is None
    assert found.is_hopeless
    assert len(found.trials) == 1
    assert {trial.verdict for trial in found.trials} == {"missed"}
