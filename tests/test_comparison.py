"""Two runs compared, and what to do: runs made by hand, where the answer is known."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from bench_runs import ENVIRONMENT, WRONG, bench, row
from facts import missing, numbers

from torchproof.measure.comparison import Comparison, compare
from torchproof.measure.comparison.metrics import Thresholds
from torchproof.records.run import Finding, Measurement, Part, Run, UserError

BREAK = Finding(
    code="GB101",
    kind="graph_break",
    severity="high",
    message="`loss.item()` splits the graph",
    cause="`loss.item()` needs the value 12 in Python",
    fix="keep it a tensor",
    file="/a/model.py",
    line=42,
    function="Net.forward",
)


def pair_of_runs(full_ms: float = 0.5, *, eager_ms: float = 1.0, **more: Any) -> Run:
    """Eager and full; `more` changes full."""
    full = row("full", full_ms, eager_ms=eager_ms, **more)
    return bench([row("eager", eager_ms), full])


def check(*found: Finding, **more: Any) -> Run:
    run = bench([], verb="check", findings=found, parts={"breaks": Part("found")})
    return replace(run, **more)


def metric(found: Comparison, name: str, strategy: str = "full") -> Any:
    (chosen,) = (r for r in found.rows if r.name == strategy)
    return next(m for m in chosen.metrics if m.name == name)


def worse(found: Comparison) -> list[tuple[str, str, str]]:
    """Strategy, metric and verdict of every regression; counts have no strategy."""
    named = [(r.name, m) for r in found.rows for m in r.metrics]
    named += [("", m) for m in found.counts]
    return [(name, m.name, m.verdict) for name, m in named if m.regression]


A = pair_of_runs()


# -- speed -----------------------------------------------------------------------------


def test_a_slower_strategy_is_a_regression_and_a_faster_one_is_not() -> None:
    slower = compare(A, pair_of_runs(0.6))
    assert metric(slower, "speed").verdict == "1.20x slower"
    assert metric(slower, "speed").low < 1 / 1.2 < metric(slower, "speed").high < 1
    assert slower.verdict == "worse"
    assert worse(slower)[0] == ("full", "speed", "1.20x slower")
    assert len(slower.regressions) == len(worse(slower))
    better = compare(pair_of_runs(0.6), A)
    assert metric(better, "speed").verdict == "1.20x faster"
    assert (better.verdict, better.regressions) == ("better", ())


def test_a_run_compared_with_itself_is_not_significant() -> None:
    same = compare(A, A)
    assert (same.verdict, same.regressions) == ("not significant", ())
    assert metric(same, "speed").verdict == "not significant"


def test_a_difference_within_the_threshold_is_no_regression() -> None:
    slower = pair_of_runs(0.6)
    loose = compare(A, slower, Thresholds(speed=25, tail=25))
    assert metric(loose, "speed").verdict == "1.20x slower"
    assert numbers(metric(loose, "speed").why) == [25]
    assert not loose.regressions


def varying(full_ms: float, chance: random.Random) -> Run:
    """A run as a machine gives it: every process has a speed of its own."""

    def measured(strategy: str, ms: float) -> Measurement:
        made = [
            row(strategy, ms * chance.gauss(1, 0.02), seed=chance.randrange(10**6))
            for _ in range(2)
        ]
        samples = made[0].rounds_ms + made[1].rounds_ms
        median = (made[0].median_ms or 0) / 2 + (made[1].median_ms or 0) / 2
        return replace(made[0], rounds_ms=samples, median_ms=median, repeats=(12, 12))

    eager, full = measured("eager", 1.0), measured("full", full_ms)
    assert eager.median_ms and full.median_ms
    full = replace(full, vs_eager=eager.median_ms / full.median_ms)
    return bench([eager, full])


@pytest.mark.slow
def test_variation_of_processes_is_no_regression_and_15_percent_are_found() -> None:
    chance = random.Random(0)
    runs = [(varying(0.5, chance), varying(0.5, chance)) for _ in range(20)]
    assert sum(bool(compare(a, b).regressions) for a, b in runs) <= 1
    runs = [(varying(0.5, chance), varying(0.575, chance)) for _ in range(10)]
    assert sum(bool(compare(a, b).regressions) for a, b in runs) >= 9


def test_a_slower_machine_is_no_regression() -> None:
    found = compare(A, pair_of_runs(0.6, eager_ms=1.2))
    assert found.eager and found.eager.verdict == "1.20x slower"
    assert metric(found, "speed").verdict == "not significant"
    assert numbers(metric(found, "speed").why) == [1.20, 1.20]
    assert "eager" in metric(found, "speed").why
    assert not found.regressions and found.verdict == "not significant"


def test_slower_by_more_than_the_machine_is_a_regression() -> None:
    found = compare(A, pair_of_runs(0.75, eager_ms=1.2))
    assert ("full", "speed", "1.50x slower") in worse(found)
    assert metric(found, "vs eager").verdict == "1.25x less"


@pytest.mark.parametrize("full_ms", [0.5, 0.45])
def test_a_faster_eager_alone_proves_nothing_about_compiling(full_ms: float) -> None:
    found = compare(A, pair_of_runs(full_ms, eager_ms=0.7))
    assert metric(found, "vs eager").verdict.endswith("x less")
    assert metric(found, "speed").verdict == "not significant"
    assert not found.regressions and found.verdict == "not significant"


def test_without_rounds_the_recorded_intervals_are_used() -> None:
    bare = [replace(r, rounds_ms=()) for r in A.measurements]
    slow = [replace(r, rounds_ms=()) for r in pair_of_runs(0.6).measurements]
    found = compare(bench(bare), bench(slow))
    assert metric(found, "speed").verdict == "1.20x slower"
    nothing = [replace(r, low_ms=None) for r in slow]
    speed = metric(compare(bench(bare), bench(nothing)), "speed")
    assert speed.verdict == "not significant"
    assert "samples" in speed.why


# -- the other metrics -----------------------------------------------------------------


def test_a_longer_tail_is_a_regression_though_the_median_is_the_same() -> None:
    full = A.measurements[1]
    long = tuple((*times[:-1], times[-1] * 2) for times in full.rounds_ms)
    found = compare(
        A, bench([A.measurements[0], replace(full, rounds_ms=long, p95_ms=1.0)])
    )
    assert metric(found, "speed").verdict == "not significant"
    assert metric(found, "tail").regression


def test_a_tail_that_eager_has_as_well_is_the_machines() -> None:
    def loaded(one: Measurement) -> Measurement:
        long = tuple((*times[:-1], times[-1] * 1.5) for times in one.rounds_ms)
        assert one.p95_ms
        return replace(one, rounds_ms=long, p95_ms=one.p95_ms * 1.5)

    found = compare(A, bench([loaded(one) for one in A.measurements]))
    assert metric(found, "tail", "eager").verdict == "1.50x slower"
    assert numbers(metric(found, "tail").why) == [1.50, 1.50]
    assert not found.regressions


@pytest.mark.parametrize(
    ("after", "verdict", "worse"),
    [
        (1000, "same", False),
        (1040, "not significant", False),
        (1100, "1.10x more", True),
        (500, "2.00x less", False),
        (None, "not judged", False),
    ],
)
def test_memory(after: int | None, verdict: str, worse: bool) -> None:
    a, b = (pair_of_runs(peak_bytes=value) for value in (1000, after))
    memory = metric(compare(a, b), "memory")
    assert (memory.verdict, memory.regression) == (verdict, worse)


@pytest.mark.parametrize(
    ("label", "seconds", "verdict", "worse"),
    [
        ("cold", 15.0, "1.25x slower", True),
        ("cold", 13.0, "not significant", False),
        ("cold", 6.0, "2.00x faster", False),
        ("warm", 15.0, "not judged", False),
        ("cold", None, "not judged", False),
    ],
)
def test_compile_time_of_two_cold_starts(
    label: str, seconds: float | None, verdict: str, worse: bool
) -> None:
    b = pair_of_runs(first_call_s=seconds, start={"label": label})
    found = metric(compare(A, b), "compile")
    assert (found.verdict, found.regression) == (verdict, worse)


@pytest.mark.parametrize("name", ["graph_breaks", "recompiles"])
def test_any_growth_of_breaks_and_recompiles_is_a_regression(name: str) -> None:
    more = pair_of_runs(counts={"graph_breaks": 0, "recompiles": 0} | {name: 1})
    short = name.replace("graph_", "")
    assert worse(compare(A, more)) == [("full", short, "1 more")]
    assert len(compare(A, more).regressions) == 1
    assert metric(compare(more, A), short).verdict == "1 fewer"
    assert compare(more, A).verdict == "better"
    unknown = pair_of_runs(counts={name: None})
    assert metric(compare(A, unknown), short).verdict == "not judged"


# -- unlike, missing, wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"), [("torch", "2.11.0"), ("threads", 1), ("gpu", "H200")]
)
def test_unlike_environments_give_no_verdict_on_speed(key: str, value: Any) -> None:
    other = {**ENVIRONMENT, key: value}
    slow = replace(pair_of_runs(1.5, counts={"recompiles": 0}), environment=other)
    found = compare(A, slow)
    assert found.unlike and str(value) in found.unlike[0]
    assert {m.verdict for r in found.rows for m in r.metrics if m.unit != "count"} == {
        "not judged"
    }
    assert (found.regressions, found.verdict) == ((), "not judged")
    broken = pair_of_runs(1.5, counts={"graph_breaks": 2})
    found = compare(A, replace(broken, environment=other))
    assert worse(found) == [("full", "breaks", "2 more")]


def test_a_patch_of_python_and_an_unknown_count_of_threads_are_no_difference() -> None:
    alike = {**ENVIRONMENT, "python": "3.11.9", "threads": None}
    assert not compare(A, replace(A, environment=alike)).unlike


def test_settings_and_missing_rows_are_said() -> None:
    variables = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_CACHE_DIR": "/x"}
    b = bench([A.measurements[1]], environment={**ENVIRONMENT, "variables": variables})
    setting, missing_row = compare(A, b).notes
    assert setting.startswith("TORCHINDUCTOR_MAX_AUTOTUNE") and numbers(setting) == [1]
    assert missing_row.endswith("in A: eager")


def test_a_row_that_is_wrong_or_fails_in_b_is_a_regression() -> None:
    wrong = compare(A, pair_of_runs(0.1, **WRONG))
    [line] = wrong.regressions
    assert missing(line, "full", "wrong", WRONG["numerics"]["why"]) == []
    failed = bench([A.measurements[0], Measurement("full", error="boom")])
    [line] = compare(A, failed).regressions
    assert missing(line, "full", "failed", "boom") == []
    assert not compare(failed, A).regressions
    skipped = Measurement("full", verdict="skipped", notes=("no blocks",))
    found = compare(A, bench([A.measurements[0], skipped]))
    assert not found.regressions
    assert missing(found.rows[1].note, " B ", "skipped", "no blocks") == []


def test_runs_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(UserError, match=r"A .*eager, full.* B .*regional"):
        compare(A, bench([row("regional", 1.0)]))
    with pytest.raises(UserError, match=r"\bB\b.*measurements"):
        compare(A, check(BREAK))


# -- one strategy against another ------------------------------------------------------


def test_eager_against_compiled() -> None:
    eager, full = bench([row("eager", 1.0)]), bench([row("full", 0.5)])
    found = compare(eager, full)
    assert metric(found, "speed", "eager -> full").verdict == "2.00x faster"
    assert found.decision and found.decision.word == "keep compiled"
    assert numbers(found.decision.text)[-1] == 23981
    back = compare(full, eager)
    assert ("full -> eager", "speed", "2.00x slower") in worse(back)
    assert back.decision and back.decision.word == "keep compiled"


def test_eager_against_compiled_that_gains_nothing_or_costs_memory() -> None:
    eager = bench([row("eager", 1.0)])
    found = compare(eager, bench([row("full", 1.3)]))
    assert found.regressions and found.decision
    assert found.decision.word == "stay eager"
    price = compare(eager, bench([row("full", 0.5, peak_bytes=2**30)]))
    assert metric(price, "memory", "eager -> full").verdict == "2.00x more"
    assert not price.regressions
    wrong = compare(eager, bench([row("full", 0.5, **WRONG)]))
    assert wrong.regressions and wrong.decision
    assert wrong.decision.word == "stay eager"


# -- findings --------------------------------------------------------------------------


def test_a_finding_stays_itself_when_lines_and_values_change() -> None:
    moved = replace(
        BREAK, line=50, file="/b/model.py", cause=BREAK.cause.replace("12", "345")
    )
    assert moved.identity == BREAK.identity
    found = compare(check(BREAK), check(moved))
    assert (found.appeared, found.gone, found.verdict) == ((), (), "not significant")


def test_a_break_that_appeared_is_a_regression_and_one_that_is_gone_is_not() -> None:
    twin = replace(BREAK, line=50)
    found = compare(check(BREAK), check(BREAK, twin))
    [line] = found.regressions
    assert found.appeared == (twin,)
    assert missing(line, "GB101", "/a/model.py:50") == []
    better = compare(check(BREAK), check())
    assert (better.gone, better.verdict) == ((BREAK,), "better")
    hint = replace(BREAK, code="CF901", kind="config", severity="low")
    assert not compare(check(), check(hint)).regressions
    wanted = replace(BREAK, status="intentional")
    assert not compare(check(), check(wanted)).regressions


def test_what_other_calls_did_not_show_is_not_gone() -> None:
    before = replace(check(BREAK), calls={"float32[4]": 3})
    for calls in ({"float32[4]": 1}, {"float32[5]": 3}):
        found = compare(before, replace(check(), calls=calls))
        assert found.gone == () and found.notes
    assert compare(before, replace(check(), calls=before.calls)).gone == (BREAK,)


def test_a_finding_of_an_older_record_is_matched_by_its_place() -> None:
    plain = {n: v for n, v in BREAK.to_json().items() if n != "key"}
    older = type(BREAK).from_json({**plain, "identity": "0123456789abcdef"})
    now = replace(BREAK, key="_.item()")
    for found in (compare(check(older), check(now)), compare(check(now), check(older))):
        assert (found.appeared, found.gone) == ((), ())


def test_what_was_not_checked_to_its_end_is_not_gone() -> None:
    for ended in (
        check(ending="timeout"),
        check(error="the script ended with code 3"),
        check(parts={"breaks": Part("skipped")}),
    ):
        found = compare(check(BREAK), ended)
        assert (found.gone, found.verdict) == ((), "not significant")
    [note] = compare(check(BREAK), check(parts={})).notes
    assert note.startswith("breaks ")


def test_counts_of_runs_are_compared() -> None:
    for run in (check(), A):
        a, b = (
            replace(run, counts={"graph_breaks": n, "recompiles": None}) for n in (1, 3)
        )
        assert worse(compare(a, b)) == [("", "breaks", "2 more")]
