"""The statistics, on recorded timings and on series made to mislead them.

tests/data/series.json holds repeats of four processes that do the same work, recorded
on two cores that four to eight programs wanted. With
three programs a core no step that is longer than the scheduler's slice, 4 ms there,
runs without interruption: of such steps the series shows what must not be said.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from torchproof.records import stats
from torchproof.records.stats import (
    Ratio,
    break_even,
    compare,
    enough,
    summarise,
    uninterrupted,
)

SERIES = Path(__file__).parent / "data" / "series.json"
REPLAYS = 120
SLICE_MS = 4.0
Rounds = list[list[float]]
Kinds = list[list[list[Rounds]]]  # by kind of work its repeats, by repeat its processes


@pytest.fixture(scope="module")
def recorded() -> Kinds:
    """Steps of 0.1 and 1 ms."""
    return read(lambda step_ms: step_ms < SLICE_MS)


@pytest.fixture(scope="module")
def overloaded() -> Kinds:
    """Steps of 5 ms, most of them interrupted."""
    return read(lambda step_ms: step_ms > SLICE_MS)


def read(wanted: Callable[[float], bool]) -> Kinds:
    series = json.loads(SERIES.read_text(encoding="utf-8"))
    kinds: dict[tuple[str, float], list[list[Rounds]]] = defaultdict(list)
    for repeat in filter(lambda each: wanted(each["step_ms"]), series["repeats"]):
        processes = [
            [[time * series["unit_ms"] for time in times] for times in rounds]
            for rounds in repeat["arms"]
        ]
        kinds[repeat["kind"], repeat["step_ms"]].append(processes)
    return list(kinds.values())


def replay(
    recorded: Kinds,
    number: int,
    *,
    slower: float,
) -> Ratio:
    """A measurement of two strategies as bench makes it, the second slower."""
    random = numpy.random.default_rng(number)
    repeats = recorded[number % len(recorded)]
    base, other, lengths = [], [], []
    for chosen in random.choice(len(repeats), stats.REPEATS, replace=False):
        first, second = random.choice(len(repeats[chosen]), 2, replace=False)
        one = repeats[chosen][first]
        two = [[t * slower for t in times] for times in repeats[chosen][second]]
        length = stats.LEAST_ROUNDS
        while length < len(one) and not enough({"1": one[:length], "2": two[:length]}):
            length += 1
        base += one[:length]
        other += two[:length]
        lengths.append(length)
    return compare(base, other, repeats=lengths)


def different(ratio: Ratio) -> bool:
    return ratio.verdict != "not significant"


def test_equal_strategies_are_called_equal(recorded: Kinds) -> None:
    ratios = [replay(recorded, number, slower=1.0) for number in range(REPLAYS)]
    assert sum(map(different, ratios)) <= 0.05 * REPLAYS


def test_a_tenth_is_found(recorded: Kinds) -> None:
    ratios = [replay(recorded, number, slower=1.1) for number in range(REPLAYS)]
    found = [ratio.verdict for ratio in ratios]
    assert found.count("slower") >= 0.95 * REPLAYS
    assert "faster" not in found
    value = float(numpy.median([ratio.value for ratio in ratios]))
    assert value == pytest.approx(1 / 1.1, rel=0.01)


@pytest.mark.slow
def test_an_overloaded_machine_makes_no_difference_but_may_hide_one(
    overloaded: Kinds,
) -> None:
    equal = [replay(overloaded, number, slower=1.0) for number in range(REPLAYS)]
    assert sum(map(different, equal)) <= 0.05 * REPLAYS
    tenth = [replay(overloaded, number, slower=1.1) for number in range(REPLAYS)]
    assert "faster" not in {ratio.verdict for ratio in tenth}
    spreads = [summarise(rounds) for processes in overloaded[0] for rounds in processes]
    assert any(spread.advice for spread in spreads)


# -- a machine that gets slower --------------------------------------------------------


def throttled(rounds: Rounds, begin: float, end: float) -> Rounds:
    """The rounds on a machine that slows down from one factor to another meanwhile."""
    factors = numpy.linspace(begin, end, len(rounds))
    return [
        [t * factor for t in times]
        for times, factor in zip(rounds, factors, strict=True)
    ]


def test_eager_measured_last_on_a_throttled_machine(
    recorded: Kinds,
) -> None:
    side_by_side, in_sequence = [], []
    for repeats in recorded:
        for compiled, eager, *_ in repeats:
            ratio = compare(throttled(eager, 1, 1.3), throttled(compiled, 1, 1.3))
            side_by_side.append(ratio.verdict)
            ratio = compare(throttled(eager, 1.15, 1.3), throttled(compiled, 1, 1.15))
            in_sequence.append(ratio.verdict)
    count = len(side_by_side)
    assert side_by_side.count("not significant") >= 0.95 * count
    assert in_sequence.count("faster") >= 0.9 * count


# -- one strategy ----------------------------------------------------------------------


def noise(rounds: int, count: int = 20, spread: float = 0.01, seed: int = 0) -> Rounds:
    """Rounds of about 1 ms."""
    random = numpy.random.default_rng(seed)
    return random.normal(1.0, spread, (rounds, count)).tolist()


def test_summary_of_quiet_rounds() -> None:
    spread = summarise(noise(rounds=16))
    assert spread.median == pytest.approx(1.0, abs=0.005)
    assert spread.low < 1.0 < spread.high < spread.low + 0.02
    assert (spread.count, spread.outliers) == (320, 0)
    assert spread.p95 == pytest.approx(1.0165, abs=0.005)
    assert spread.stable


def test_the_interval_of_the_median_covers_it() -> None:
    spreads = [summarise(noise(12, 5, 0.05, seed)) for seed in range(120)]
    covered = sum(spread.low <= 1.0 <= spread.high for spread in spreads)
    assert 0.90 * 120 <= covered < 120


@pytest.mark.parametrize("rounds", [4, 8, 16])
def test_the_interval_of_a_ratio_covers_it(rounds: int) -> None:
    random = numpy.random.default_rng(rounds)
    covered = 0
    for _ in range(120):
        base, other = numpy.exp(random.normal(0, 0.05, (2, rounds, 1))).tolist()
        ratio = compare(base, other, variation=0.0)
        assert ratio.low is not None and ratio.high is not None
        covered += ratio.low <= 1.0 <= ratio.high
    assert 0.89 * 120 <= covered < 120


def test_a_first_call_among_the_samples_moves_the_mean_but_not_the_summary() -> None:
    rounds = noise(rounds=16)
    rounds[0][0] = 5000.0
    assert numpy.mean(rounds) > 16
    spread = summarise(rounds)
    assert spread.median == pytest.approx(1.0, abs=0.005)
    assert spread.p95 < 1.03
    assert spread.outliers == 1


def test_unstable_times_come_with_advice() -> None:
    two_speeds = noise(rounds=16)
    for times in two_speeds:
        times[::2] = [t * 1.4 for t in times[::2]]
    steady = noise(rounds=20)
    unstable = {
        "rose": throttled(steady, 1, 1.3),
        "fell": throttled(steady, 1.3, 1),
        "6 samples": noise(rounds=3, count=2),
        "1 and 1.4 ms": two_speeds,
        "spread": noise(rounds=16, spread=0.15),
        "outliers": [[1.0, *times[1:], 8.0, 9.0] for times in noise(rounds=16)],
    }
    for words, rounds in unstable.items():
        spread = summarise(rounds)
        assert words in " ".join(spread.advice), (words, spread)
        assert not spread.stable
    assert "interrupted" in summarise(noise(16), interrupted=0.7).advice[0]


def test_a_round_keeps_what_was_not_interrupted() -> None:
    assert uninterrupted([5.0, 9.0, 5.1], [False, True, False]) == [5.0, 5.1]
    assert uninterrupted([9.0, 13.0], [True, True]) == [9.0, 13.0]
    times = [float(number) for number in range(500)]
    thinned = uninterrupted(times, [False] * 500)
    assert len(thinned) == stats.ROUND_SAMPLES
    assert (thinned[0], thinned[-1]) == (0.0, 499.0)


def test_a_round_is_stretched_while_everything_is_interrupted() -> None:
    over = stats.round_is_over
    assert over(61.0, clean=3) and not over(59.0, clean=30)
    assert not over(200.0, clean=2) and over(241.0, clean=0)
    assert over(11.0, 3, round_ms=10.0)


# -- two strategies --------------------------------------------------------------------


def constant(value: float, rounds: int = 16) -> Rounds:
    return [[value] * 5] * rounds


def test_what_two_processes_differ_by_is_no_difference() -> None:
    """However exact: another process of the same code might be as far away."""
    assert not different(compare(constant(1.03), constant(1.0), repeats=[8, 8]))
    ratio = compare(constant(1.1), constant(1.0), repeats=[8, 8])
    assert ratio.verdict == "faster"
    assert ratio.value == pytest.approx(1.1)
    assert ratio.low is not None and ratio.high is not None
    assert 1.04 < ratio.low < 1.08 and 1.12 < ratio.high < 1.16


def test_repeats_that_disagree_show_nothing() -> None:
    base = constant(1.2, 8) + constant(1.0, 8)
    ratio = compare(base, constant(1.0), repeats=[8, 8])
    assert not different(ratio)
    [advice] = ratio.advice
    assert "20%" in advice
    agreed = compare(constant(1.1), constant(1.0), repeats=[8, 8])
    assert different(agreed)
    assert agreed.advice == ()


def test_too_few_rounds_give_no_interval() -> None:
    ratio = compare(constant(2.0, 3), constant(1.0, 3))
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(2.0), None, None)
    assert not different(ratio)


def processes(
    count: int, spread: float, seed: int, level: float = 1.0
) -> tuple[Rounds, list[int]]:
    """Eight rounds in each process; processes vary by `spread`, rounds hardly."""
    random = numpy.random.default_rng(seed)
    levels = level * numpy.exp(random.normal(0, spread, count))
    rounds = [[t * one for t in times] for one in levels for times in noise(8, 5, 1e-3)]
    return rounds, [8] * count


def test_enough_processes_show_their_variation_themselves() -> None:
    """The interval of the median and of a ratio covers what processes differ by."""
    medians = ratios = 0
    for seed in range(120):
        base, repeats = processes(5, 0.05, seed)
        other, _ = processes(5, 0.05, seed + 1000)
        spread = summarise(base, repeats=repeats)
        medians += spread.low <= 1.0 <= spread.high
        ratio = compare(base, other, repeats=repeats, variation=0.0)
        assert ratio.low is not None and ratio.high is not None
        ratios += ratio.low <= 1.0 <= ratio.high
    assert 0.91 * 120 <= medians < 120 and 0.91 * 120 <= ratios < 120


def test_the_interval_over_processes_is_the_t_interval() -> None:
    base, repeats = processes(5, 0.05, 3)
    logs = numpy.log([numpy.median(base[k : k + 8]) for k in range(0, 40, 8)])
    half = 2.776 * logs.std(ddof=1) / 5**0.5
    spread = summarise(base, repeats=repeats)
    assert numpy.log(spread.median) == pytest.approx(logs.mean(), abs=1e-3)
    assert numpy.log(spread.high / spread.low) == pytest.approx(2 * half, rel=0.02)
    assert stats.interval_over(repeats) == "processes"
    assert stats.interval_over(repeats[:4]) == "rounds"


def test_a_small_gain_that_every_process_shows_needs_no_floor() -> None:
    base, repeats = processes(6, 0.001, 0, level=1.012)
    other, _ = processes(6, 0.001, 1)
    assert compare(base, other, repeats=repeats).verdict == "faster"
    two = compare(base[:16], other[:16], repeats=repeats[:2])
    assert not different(two)


def test_the_variation_between_processes_comes_from_the_run() -> None:
    base, repeats = processes(4, 0.001, 0)
    others = [processes(4, 0.05, seed)[0] for seed in range(1, 9)]
    found = stats.process_variation(base, others, repeats)
    assert found == pytest.approx(0.05 / 2**0.5, rel=0.35)
    assert stats.process_variation(base[:8], [others[0][:8]], [8]) == 0.0


def test_a_ratio_that_is_not_that_of_the_medians_is_told() -> None:
    """The machine is fast in most rounds of one, slow in most of the other."""
    base = constant(2.0, 9) + constant(0.7, 7)
    other = constant(1.4, 7) + constant(0.65, 9)
    ratio = compare(base, other, variation=0.0)
    medians = summarise(base).median / summarise(other).median
    assert ratio.of_medians == pytest.approx(medians) and medians > 3
    assert ratio.value < 1.5
    assert ratio.low is not None and ratio.high is not None
    assert ratio.low <= ratio.value and ratio.high >= medians
    assert any(f"{medians:.2f}x" in advice for advice in ratio.advice)
    usual = compare(constant(1.4), constant(1.0))
    assert usual.of_medians == pytest.approx(usual.value) and usual.advice == ()


def test_the_tail_is_of_all_samples() -> None:
    times = [1.0] * 900 + [9.0] * 100  # one in ten was interrupted
    kept_ms = uninterrupted(times, [False] * 900 + [True] * 100)
    assert stats.p95([kept_ms] * 8) == 1.0
    tail = stats.tail_of(times)
    assert len(tail) == stats.ROUND_SAMPLES
    spread = summarise([kept_ms] * 8, tail=[tail] * 8)
    assert (spread.median, spread.p95) == (1.0, 9.0)
    assert stats.tail_of([3.0, 1.0]) == [1.0, 3.0]


# -- when to begin and to stop ---------------------------------------------------------


def calls_until_steady(times: list[float]) -> int | None:
    return next((n for n in range(len(times)) if stats.steady(times[:n])), None)


def test_the_first_call_is_warm_up() -> None:
    times = [8000.0, *numpy.ravel(noise(1, 400)).tolist()]
    count = calls_until_steady(times)
    assert count is not None and 100 < count < 250


def test_what_falls_is_not_steady() -> None:
    number = numpy.arange(120)
    falling = (100 * (1 + 2 * 0.9**number)).tolist()
    count = calls_until_steady(falling)
    assert count is not None
    assert falling[count] < 110
    assert calls_until_steady([1000.0 * 0.8**n for n in range(20)]) is None


def test_a_late_compilation_is_not_steady() -> None:
    assert stats.steady([20.0] * 9)
    assert not stats.steady([20.0] * 8 + [900.0])


def test_a_repeat_may_end_once_its_ratios_are_known() -> None:
    quiet = {"eager": noise(8), "full": noise(8, seed=1)}
    assert enough(quiet)
    assert not enough({name: rounds[:7] for name, rounds in quiet.items()})
    assert not enough(quiet | {"regional": noise(8, spread=0.3)})
    assert enough({"eager": noise(8)})


def test_equal_strategies_do_not_take_longer_than_different_ones() -> None:
    """Sampling until a difference shows would find one in the end."""
    for seed in range(20):
        one, two = noise(8, 5, 0.03, seed), noise(8, 5, 0.03, seed + 100)
        slower = [[t * 1.5 for t in times] for times in two]
        assert enough({"a": one, "b": two}) == enough({"a": one, "b": slower})


# -- what it is worth ------------------------------------------------------------------

FASTER = Ratio(2.0, 1.9, 2.1, "faster")
SLOWER = Ratio(0.8, 0.7, 0.9, "slower")
SAME = Ratio(1.02, 0.98, 1.06, "not significant")


@pytest.mark.parametrize(
    ("first_s", "eager_s", "eager_ms", "ratio", "steps", "text"),
    [
        # 10 s + 990 steps of 10 ms, or 0.1 s + 990 steps of 20 ms
        (10.0, 0.1, 20.0, FASTER, 991, "after 991 steps"),
        (0.1, 0.1, 20.0, FASTER, 1, "after 1 step"),
        (10.0, 0.1, 20.0, SLOWER, None, "never"),
        (10.0, 0.1, 20.0, SAME, None, "no gain shown"),
        (None, 0.1, 20.0, FASTER, None, None),
        (10.0, None, 20.0, FASTER, None, None),
        (10.0, 0.1, None, FASTER, None, None),
        (10.0, 0.1, 20.0, None, None, None),
    ],
)
def test_break_even(
    first_s: float | None,
    eager_s: float | None,
    eager_ms: float | None,
    ratio: Ratio | None,
    steps: int | None,
    text: str | None,
) -> None:
    found = break_even(first_s, eager_s, eager_ms, ratio)
    assert (found and found.steps, found and found.text) == (steps, text)
