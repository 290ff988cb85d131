"""Timetables: seeded, absolute, at the given rate; and files of requests."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from torchproof.measure.loadtest import LoadOptions
from torchproof.measure.loadtest.timetable import (
    Timetable,
    draw,
    from_trace,
    read_trace,
)
from torchproof.records import UserError


def gaps(table: Timetable) -> list[float]:
    pairs = zip(table.arrival_s, table.arrival_s[1:], strict=False)
    return [late - early for early, late in pairs]


def test_a_seed_draws_the_same_timetable_again() -> None:
    first, again, other = (
        draw(LoadOptions(rate=10, arrivals="gamma:0.5", requests=20, seed=seed), [3, 1])
        for seed in (7, 7, 1)
    )
    assert first == again
    assert first.arrival_s != other.arrival_s and first.call != other.call


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [("poisson", 1.0), ("constant", 0.0), ("gamma:0.25", 2.0), ("gamma:4", 0.5)],
)
def test_gaps_have_the_given_mean_and_variation(
    arrivals: str, variation: float
) -> None:
    table = draw(LoadOptions(rate=50, arrivals=arrivals, requests=20_000), [1])
    mean = statistics.mean(gaps(table))
    assert mean == pytest.approx(1 / 50, rel=0.05)
    measured = statistics.stdev(gaps(table)) / mean
    assert measured == pytest.approx(variation, rel=0.1, abs=1e-6)


def test_a_duration_holds_all_arrivals_before_its_end() -> None:
    table = draw(LoadOptions(rate=1000, duration_s=3), [1])
    assert 2700 < len(table) < 3300
    assert table.arrival_s[-1] < 3 == table.length_s
    more = draw(LoadOptions(rate=1000, requests=len(table) + 1), [1])
    assert more.arrival_s[: len(table)] == table.arrival_s
    assert more.arrival_s[-1] >= 3


def test_another_rate_has_the_same_bursts() -> None:
    options = LoadOptions(rate=10, requests=50)
    slow, fast = draw(options, [1, 2]), draw(options, [1, 2], rate=20)
    assert fast.arrival_s == pytest.approx([time / 2 for time in slow.arrival_s])
    assert fast.call == slow.call


def test_calls_are_drawn_by_weight() -> None:
    table = draw(LoadOptions(rate=10, requests=10_000), [6, 0, 3, 1])
    shares = [table.call.count(call) / 10_000 for call in range(4)]
    assert shares[1] == 0
    assert shares == pytest.approx([0.6, 0, 0.3, 0.1], abs=0.02)


def test_a_timetable_can_be_cut() -> None:
    table = Timetable((0.0, 1.0, 2.0), (0, 1, 0), 3.0)
    assert table.until(1.0) == Timetable((0.0, 1.0), (0, 1), 1.0)
    assert table.until(9.0) == table
    assert table.before(1) == Timetable((0.0,), (0,), 1.0)
    assert table.before(3) == table


def test_no_request_within_the_duration_is_an_error() -> None:
    with pytest.raises(UserError, match="--duration"):
        draw(LoadOptions(rate=0.001, duration_s=0.1), [1])


# -- files -----------------------------------------------------------------------------

SIZES = '"sizes": {"batch": 4, "sequence": 16}'
TEN = "\n".join(f"{time},0" for time in range(10))
CUT = {
    "four of ten times": {"requests": 4},
    "ten times, until 2.5 s": {"duration_s": 2.5},
}
FILES = {
    "times and calls": "\ufefftime,call\n5.0,2\r\n\n# a pause\n5.5,0\n7,2\n",
    "sizes": (
        f'{{"time": 0, {SIZES}}}\n'
        '{"time": 1, "call": 1}\n'
        '{"time": 2, "sizes": {"sequence": 16, "batch": 4}}\n'
        f'{{"time": 3, "call": 1, {SIZES}}}\n'
    ),
    "ten times": TEN,
    "four of ten times": TEN,
    "ten times, until 2.5 s": TEN,
    "too deep": "0,0\n" + "{" * 5000,
    "nothing": "# nothing\n",
    "unsorted": "0,0\n2,0\n1,0\n",
    "a call too many": "0,0\n1,1\n2,5\n",
    **{
        line[:40]: f"0,0\n{line}\n"
        for line in (
            "soon,1",
            "1.0,one",
            "1.0,-1",
            "-1,0",
            "nan,0",
            "1,2,3",
            "{",
            "[1, 2]",
            '{"call": 1}',
            '{"time": "1"}',
            '{"time": true}',
            '{"time": 1, "call": 1.5}',
            '{"time": 1, "size": {"batch": 1}}',
            '{"time": 1, "sizes": {"width": 1}}',
            '{"time": 1, "sizes": {"batch": 0}}',
            '{"time": 1, "sizes": [1]}',
        )
    },
}


def test_files_of_requests_are_read_as_they_were(
    tmp_path: Path, snapshot: Callable[[str, str], None]
) -> None:
    lines = []
    for name, text in FILES.items():
        path = tmp_path / "requests.txt"
        path.write_text(text)
        try:
            trace = read_trace(str(path))
            options = LoadOptions(arrivals=str(path), **CUT.get(name, {}))
            table = from_trace(trace, options, calls=3)
        except UserError as error:
            lines.append(f"{name}: {str(error).replace(str(tmp_path), 'FOLDER')}")
            assert "\n" not in lines[-1]
            continue
        sizes = [(kind.index, dict(kind.sizes)) for kind in trace.sized]
        lines.append(f"{name}: {table.arrival_s} of {table.length_s:g} s")
        lines.append(f"    calls {table.call}, the last ones with {sizes}")
    snapshot("request-files.txt", "\n".join(lines) + "\n")
