"""The open loop: latency counts from the arrival, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from virtual_server import VirtualServer, result

from torchproof.measure.loadtest import LoadOptions
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.results import metric_ms
from torchproof.measure.loadtest.serving import OTHER_ERRORS, Batching, Queue, serve
from torchproof.measure.loadtest.timetable import Timetable, draw


def constant(count: int, gap_s: float, calls: tuple[int, ...] = ()) -> Timetable:
    times = tuple(number * gap_s for number in range(count))
    return Timetable(times, calls or (0,) * count, count * gap_s)


def test_a_stall_delays_the_requests_behind_it(tmp_path: Path) -> None:
    """Measured from the begin of service, the stall would hit one request only."""
    calls = (0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    server = VirtualServer(tmp_path, lambda call, count: 0.35 if call else 0.01)
    requests = server.serve(constant(10, 0.1, calls))
    expected = {
        "latency": [10, 10, 350, 260, 170, 80, 10, 10, 10, 10],
        "service": [10, 10, 350, *[10] * 7],
        "queueing": [0, 0, 0, 250, 160, 70, 0, 0, 0, 0],
    }
    for name, values in expected.items():
        assert metric_ms(requests, name) == pytest.approx(values, abs=1e-6)


def test_an_idle_worker_that_wakes_up_late_is_detected(tmp_path: Path) -> None:
    table = draw(LoadOptions(rate=20, requests=200), [1])
    for late_s, on_time in ((0.0, True), (0.03, False)):
        server = VirtualServer(tmp_path, lambda call, count: 0.005, wakes_late_s=late_s)
        requests = server.serve(table)
        found = result(requests, table, lateness_ms=server.log.lateness_ms())
        assert found.on_time is on_time
        assert found.late_ms == pytest.approx(late_s * 1e3, abs=1e-6)


def test_a_server_that_is_too_slow_ends_after_a_bounded_drain(tmp_path: Path) -> None:
    table = constant(300, 0.1)  # 30 s
    requests = VirtualServer(tmp_path, lambda call, count: 0.5).serve(table)
    answered = [end for end in requests.end_s if end is not None]
    assert len(answered) == 121  # until the first request that begins after 60 s
    assert requests.begin_s[121:] == (None,) * 179
    found = result(requests, table)
    assert (found.kept_up, found.unserved) == (False, 179)


def test_the_time_to_the_first_answer_does_not_count_as_drain(tmp_path: Path) -> None:
    slow = iter([100.0])
    server = VirtualServer(tmp_path, lambda call, count: next(slow, 0.001))
    requests = server.serve(constant(50, 0.1))
    assert None not in requests.end_s


def test_failing_requests_are_counted_by_their_text(tmp_path: Path) -> None:
    def fail(numbers: Sequence[int]) -> None:
        raise ValueError(f"request {numbers[0]}")

    errors = serve(fail, RequestLog(tmp_path / "many", constant(100, 0.0)))
    assert len(errors) == 21 and errors[OTHER_ERRORS] == 80

    def answer(numbers: Sequence[int]) -> None:
        if table.call[numbers[0]] == 1:
            raise ValueError("no such\ntoken")
        if table.call[numbers[0]] == 2:
            raise SystemExit("enough")

    table = constant(6, 0.0, (0, 1, 0, 1, 2, 0))
    log = RequestLog(tmp_path / "log", table)
    errors = serve(answer, log)
    assert errors == {"ValueError: no such token": 2, "SystemExit: enough": 1}
    requests = log.requests()
    assert requests.failed == (1, 3, 4)
    found = result(requests, table, cold=False)
    assert (found.answered, found.failed, found.unserved) == (3, 3, 0)


def test_an_interrupt_ends_the_other_workers_too(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=60)

    def answer(numbers: Sequence[int]) -> None:
        both.wait()  # each worker has a request
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    table = Timetable((0.0, 0.0, 3600.0), (0, 0, 0), 3601.0)
    log = RequestLog(tmp_path / "log", table)
    with pytest.raises(KeyboardInterrupt):
        serve(answer, log, workers=2)
    names = {thread.name for thread in threading.enumerate()}
    assert log.is_stopped and "worker-1" not in names


def test_the_parent_can_stop_a_test(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log", constant(1000, 0.0))

    def answer(numbers: Sequence[int]) -> None:
        if log.finished == 10:
            RequestLog(log.path).stop()  # as another process sees it

    serve(answer, log)
    assert log.is_stopped and log.finished == 11
    assert 0 <= log.stopped_s <= log.elapsed_s


def test_several_workers_serve_at_the_same_time(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=30)
    log = RequestLog(tmp_path / "log", constant(4, 0.0))
    # Each request waits for one that is served beside it.
    assert not serve(lambda numbers: both.wait() and None, log, workers=2)
    assert {*log.requests().worker} == {0, 1}


# -- batches ---------------------------------------------------------------------------


FIVE = Timetable((0.0, 0.01, 0.02, 0.03, 0.2), (0, 1, 0, 0, 0), 1.0)
THREE = Timetable((0.0, 0.01, 0.02), (0, 0, 0), 1.0)


@pytest.mark.parametrize(
    ("table", "batching", "now", "batches"),
    [
        (FIVE, Batching(0.025, 8), 0.0, [([0, 2], 0.025), ([1], 0.035)]),
        (FIVE, Batching(0.1, 2), 0.0, [([0, 2], 0.02), ([1], 0.11)]),
        # What waits already needs no window.
        (FIVE, Batching(0.0, 8), 0.5, [([0, 2, 3, 4], 0.5), ([1], 0.5)]),
        # A batch begins when it is full or its window ends.
        (THREE, Batching(0.1, 3), 0.0, [([0, 1, 2], 0.02)]),
        (THREE, Batching(0.1, 4), 0.0, [([0, 1, 2], 0.1)]),
        (THREE, Batching(0.1, 4), 5.0, [([0, 1, 2], 5.0)]),
    ],
)
def test_requests_of_one_call_within_the_window_are_a_batch(
    table: Timetable,
    batching: Batching,
    now: float,
    batches: list[tuple[list[int], float]],
) -> None:
    queue = Queue(table, batching)
    found = [queue.take(now) for _ in batches]
    assert found == [(numbers, pytest.approx(ready)) for numbers, ready in batches]


def test_a_request_that_finds_the_queue_full_is_rejected(tmp_path: Path) -> None:
    server = VirtualServer(tmp_path, lambda call, count: 1.0)
    table = Timetable((0.0, 0.1, 0.2, 0.3, 1.5, 5.0), (0,) * 6, 6.0)
    requests = server.serve(table, queue_limit=2)
    # The first is served at once, two wait, and the worker is idle for the last.
    assert requests.rejected == (3,)
    assert server.serve(table, queue_limit=0).rejected == (1, 2, 3)
    assert server.serve(table).rejected == ()


def test_another_process_reads_the_timetable_from_the_log(tmp_path: Path) -> None:
    table = Timetable((0.0, 0.5), (1, 0), 2.0)
    texts = replace(table, prompt_tokens=(3, 4), output_tokens=(5, 6))
    for each in (table, texts):
        log = RequestLog(tmp_path / "log", each)
        assert RequestLog(log.path).timetable == each
