"""Which candidate is tried, and which one wins, by a table of outcomes."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_executor import EAGER, EAGER_MS, Fake, Fate, Setting
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.records import Measurement, Outcome, Run, Trial, UserError
from torchproof.records.objective import Objective
from torchproof.strategies import recipe
from torchproof.tuning import outcome
from torchproof.tuning.search import REPLAYS
from torchproof.tuning.trial_worker import outcome_of

FORMS = ("full", "regional", "nested")
KILLED = "killed"
SAME = {"verdict": "same"}
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"
GRAPH = "full+graph"
PDL = "full+graph, triton.enable_pdl=True"

# Fates of candidates, and the one that wins.
WINNERS: dict[str, tuple[dict[str, Fate], str]] = {
    "the fastest": ({"full": Fate(5.0), "regional": Fate(4.0)}, "regional"),
    "an uncertain gain": ({"full": Fate(8.0, spread=1.4)}, "eager"),
    "certain in the finals": (
        {"full": Fate(8.0, spread=1.4, final_spread=1.01)},
        "full",
    ),
    "a gain below the minimum": ({"full": Fate(9.8, spread=1.0)}, "eager"),
    "fast in its trial only": (
        {"full": Fate(4.0, final_ms=10.5), "regional": Fate(4.1)},
        "regional",
    ),
    "wrong in the finals": (
        {"full": Fate(4.0, final_verdict="wrong"), "regional": Fate(4.1)},
        "regional",
    ),
    "not compared": (
        {"full": Fate(4.0, outcome="unverified"), "regional": Fate(5.0)},
        "regional",
    ),
    "all fail": (
        {
            "full": Fate(outcome="failed"),
            "regional": Fate(outcome="wrong"),
            "nested": Fate(outcome="out of memory"),
        },
        "eager",
    ),
    "a finalist fails": (
        {"full": Fate(4.0, final_error=KILLED), "regional": Fate(4.1)},
        "regional",
    ),
    "every finalist fails": (
        {name: Fate(4.0, final_error=KILLED) for name in FORMS},
        "eager",
    ),
    "too little memory beside others": (
        {"full": Fate(4.0, final_error=OUT_OF_MEMORY), "regional": Fate(4.2)},
        "full",
    ),
}


@pytest.mark.parametrize(("fates", "winner"), WINNERS.values(), ids=WINNERS)
def test_winner(fates: dict[str, Fate], winner: str) -> None:
    chosen, search, _ = Setting(fates).run(*FORMS)
    assert chosen.name == winner and chosen.outcome == "measured"
    for name, fate in fates.items():
        if fate.final_error == KILLED or fate.final_verdict == "wrong":
            assert search.trials[name].outcome in ("failed", "wrong")


@pytest.mark.parametrize(
    ("row", "timed_out", "expected"),
    [
        (Measurement("full", error="no answer"), True, "timed out"),
        (Measurement("full", error="no answer within 3 s"), False, "failed"),
        (Measurement("full", error=OUT_OF_MEMORY), False, "out of memory"),
        (Measurement("full", verdict="unverified"), False, "unverified"),
        (Measurement("full", verdict="skipped"), False, "not applicable"),
        (Measurement("full", median_ms=1.0, numerics=SAME), False, "measured"),
    ],
)
def test_outcome_of_a_measurement(
    row: Measurement, timed_out: bool, expected: str
) -> None:
    assert outcome_of(row, timed_out=timed_out)[0] == expected


OBJECTIVES = {
    "full": Fate(4.0, start_s=30.0, peak_bytes=900),
    "regional": Fate(5.0, start_s=5.0, peak_bytes=2000),
    "nested": Fate(6.0, start_s=12.0, peak_bytes=500),
}
SLOWER = {
    "full": Fate(12.0, start_s=0.2, peak_bytes=100),
    "regional": Fate(9.0, start_s=9.0, peak_bytes=800),
}


@pytest.mark.parametrize(
    ("objective", "fates", "best"),
    [
        ("step", OBJECTIVES, "full"),
        ("first", OBJECTIVES, "regional"),
        ("memory", OBJECTIVES, "nested"),
        ("steps:100", OBJECTIVES, "eager"),
        ("steps:2000", OBJECTIVES, "regional"),
        ("steps:100000", OBJECTIVES, "full"),
        ("first", SLOWER, "regional"),  # a short first call with slower steps
        ("memory", SLOWER, "regional"),  # less memory with slower steps
    ],
)
def test_objective_decides(objective: str, fates: dict[str, Fate], best: str) -> None:
    assert Setting(fates, objective).run(*FORMS)[0].name == best


def test_steps_count_at_the_lower_end_of_the_interval() -> None:
    objective = Objective.parse("steps:1000000")
    eager = EAGER.trial("eager")
    likely, sure = Fate(9.0, spread=1.2).trial("full"), Fate(9.0).trial("full")
    assert objective.gain(likely, eager) > 1.1  # type: ignore[operator]
    assert not objective.allows(likely, eager, least=1.05)
    assert objective.allows(sure, eager, least=1.05)


def test_equally_fast_switch_loses_to_the_plain_form() -> None:
    switch = "full, cpp_wrapper=True"
    fates = {"full": Fate(5.0), switch: Fate(4.98)}
    chosen, search, _ = Setting(fates).run()
    assert chosen.name == "full" and search.trials[switch].outcome == "measured"
    fates[switch] = Fate(4.5)
    chosen = Setting(fates).run()[0]
    assert chosen.name == switch and chosen.stage == "switches"


# -- halving ---------------------------------------------------------------------------

CORES = ("full", "regional", "core:a", "core:b")


def test_slower_half_drops_out_after_each_rung() -> None:
    fates = {n: Fate(5.0 + i / 10) for i, n in enumerate(CORES)}
    chosen, search, fake = Setting(fates).run(*CORES)
    assert fake.compared == [CORES, CORES[:2]] and chosen.name == "full"
    assert fake.rounds == [4, 12]
    assert all(search.trials[name].final for name in CORES)
    assert [row.strategy for row in search.rows] == ["eager", "full", "regional"]


def test_next_best_follow_if_all_finalists_fail() -> None:
    fates = {name: Fate(4.0, final_error=KILLED) for name in CORES}
    fates["nested"] = Fate(6.0)
    chosen, _, fake = Setting(fates).run(*CORES, "nested")
    assert chosen.name == "nested" and chosen.final
    assert [set(names) for names in fake.compared] == [{*CORES}, {"nested"}, {"nested"}]


def test_dropped_finalist_does_not_win_by_its_earlier_time() -> None:
    """The machine gets slower after the first rung, for all that are still in it."""
    fates = {"full": Fate(5.0), "regional": Fate(5.2)}

    def gets_slower(fake: Fake) -> None:
        compare = fake.compare

        def slower(finalists: Any, rounds: int) -> tuple[Measurement, ...]:
            factor = 1.0 if rounds == 4 else 1.2
            return tuple(
                replace(row, median_ms=(row.median_ms or 0.0) * factor)
                for row in compare(finalists, rounds)
            )

        fake.compare = slower  # type: ignore[method-assign]

    chosen, _, fake = Setting(fates).run("full", "regional", change=gets_slower)
    assert fake.compared == [("full", "regional"), ("full",)]
    assert chosen.name == "full"


def test_trials_stand_if_eager_fails_in_the_finals() -> None:
    def fails(fake: Fake) -> None:
        fake.eager_fails = True

    chosen, search, _ = Setting({"full": Fate(4.0)}).run("full", change=fails)
    assert chosen.name == "full" and not chosen.final and search.rows == ()


# -- time ------------------------------------------------------------------------------


def test_hanging_trial_leaves_time_for_the_others() -> None:
    fates = {"full": Fate(4.0, seconds=1e9), "regional": Fate(5.0, seconds=20.0)}
    chosen, search, fake = Setting(fates, budget_s=600).run("full", "regional")
    assert search.trials["full"].outcome == "timed out"
    assert chosen.name == "regional" and fake.limits["full"] < 300


@pytest.mark.parametrize(
    ("others_s", "tried", "spent"), [(1.0, 3, False), (50.0, 2, True), (1e9, 2, True)]
)
def test_stopped_names_the_reason(others_s: float, tried: int, spent: bool) -> None:
    fates = {name: Fate(4.0, seconds=others_s) for name in FORMS}
    fates["full"] = Fate(4.0, seconds=40.0)
    chosen, search, fake = Setting(fates, budget_s=100).run(*FORMS)
    assert chosen.name == "full" and len(fake.tried) == tried
    assert ("spent" in search.stopped) == spent


@pytest.mark.parametrize("budget_s", [1e-3, 5.0, 200.0])
def test_budget_too_small_for_one_trial_is_an_error(budget_s: float) -> None:
    fates = {name: Fate(4.0, seconds=1e9) for name in FORMS}
    with pytest.raises(UserError, match=f"--budget {budget_s:g}s.*at least") as raised:
        Setting(fates, budget_s=budget_s).run(*FORMS)
    least = re.search(r"at least --budget (\d+)s", str(raised.value))
    assert least is not None and float(least[1]) > budget_s


def test_users_timeout_is_no_lack_of_budget() -> None:
    chosen, search, fake = Setting({"full": Fate(seconds=1e9)}, timeout_s=7.0).run(
        "full"
    )
    assert chosen.name == "eager" and "tried" in search.stopped
    assert fake.limits["full"] == 7.0


@pytest.mark.parametrize(
    ("pass_ms", "rounds"), [(1.0, [4, 12]), (6e3, [4, 8]), (1e5, [4])]
)
def test_finals_of_slow_steps_end_with_the_budget(
    pass_ms: float, rounds: list[int]
) -> None:
    chosen, _, fake = Setting({"full": Fate(4.0, pass_ms=pass_ms)}, budget_s=100).run(
        "full"
    )
    assert fake.rounds == rounds and chosen.name == "full"


# -- which candidates are tried --------------------------------------------------------


def skipped(search: Any) -> dict[str, str]:
    return {skip.name: skip.why for skip in search.skipped}


@pytest.mark.parametrize(("effort", "count"), [("quick", 4), ("normal", 8)])
def test_effort_limits_the_trials(effort: Any, count: int) -> None:
    _, search, fake = Setting(effort=effort, device="cuda").run()
    assert len(fake.tried) == count
    _, _, everything = Setting(effort="full", device="cuda").run()
    assert everything.tried[:count] == fake.tried and len(everything.tried) > count
    assert set(everything.tried) - set(fake.tried) <= set(skipped(search))


def test_named_strategies_are_tried_once_each_and_no_others() -> None:
    names = ("full", "regional", "full", "nested", "core:a", "core:b", "full:dynamic")
    _, _, fake = Setting(effort="quick", lanes=3).run(*names)
    assert sorted(fake.tried) == sorted(set(names))


def test_candidate_is_skipped_if_its_base_failed() -> None:
    _, search, fake = Setting({"full": Fate(outcome="failed")}).run(
        "full", "full:max-autotune"
    )
    assert fake.tried == ["full"]
    assert "full," in skipped(search)["full:max-autotune"]


def test_candidate_waits_for_its_base() -> None:
    _, _, fake = Setting(lanes=4).run("full+graph", "full", "regional")
    assert fake.tried.index("full") < fake.tried.index("full+graph")
    setting = Setting(
        {"full": Fate(5.0, graph_breaks=1), "core:encode": Fate(outcome="failed")},
        device="cuda",
        lanes=8,
        probe={"blocks": {}, "varying": [], "core": ["encode"]},
    )
    _, search, fake = setting.run()
    assert "core:encode" in fake.tried and "core+graph:encode" in skipped(search)


@pytest.mark.parametrize(
    ("full", "tried"),
    [
        (Fate(outcome="failed"), {"nested", "core:encode"}),
        (
            Fate(5.0, graph_breaks=2),
            {"nested", "core:encode", "full, nested_graph_breaks=True"},
        ),
        (Fate(5.0), set()),
    ],
)
def test_fallbacks_are_tried_if_full_is_not_one_graph(
    full: Fate, tried: set[str]
) -> None:
    probe = {"blocks": {"Block": 4}, "varying": [], "core": ["encode"]}
    _, search, fake = Setting({"full": full}, probe=probe).run()
    fallbacks = {"nested", "core:encode", "full, nested_graph_breaks=True"}
    assert fallbacks & set(fake.tried) == tried
    assert fallbacks - tried <= set(skipped(search))


# -- replays ---------------------------------------------------------------------------


def test_racing_kernels_win_after_equal_replays() -> None:
    setting = Setting({GRAPH: Fate(2.0), PDL: Fate(1.8)}, device="cuda")
    chosen, search, fake = setting.run()
    assert (chosen.name, chosen.replays) == (PDL, REPLAYS)
    assert fake.replayed == [(PDL, GRAPH, REPLAYS)]
    found = outcome.recipe_of(search, chosen, Run("", "", "", {}, {}), train=False)
    again = recipe.loads(found.dumps())
    assert again.strategy.arguments == {"options": {"triton.enable_pdl": True}}
    assert again.numerics["replays"] == REPLAYS


@pytest.mark.parametrize(
    ("racing", "budget_s", "rejection", "equal"),
    [
        (Fate(1.8, differs_at=700), 600.0, "wrong", 699),
        (Fate(1.8, pass_ms=10_000.0), 5000.0, "failed", None),  # no time for them
    ],
)
def test_racing_kernels_lose_without_equal_replays(
    racing: Fate, budget_s: float, rejection: str, equal: int | None
) -> None:
    fates = {GRAPH: Fate(2.0), PDL: racing}
    chosen, search, _ = Setting(fates, device="cuda", budget_s=budget_s).run()
    assert chosen.name == GRAPH and chosen.replays is None
    assert search.trials[PDL].outcome == rejection
    assert search.trials[PDL].replays == equal


# -- resuming --------------------------------------------------------------------------


def earlier(**fates: Fate) -> dict[str, Trial]:
    return {name: fate.trial(name) for name, fate in fates.items()}


def test_earlier_trials_are_not_repeated() -> None:
    trials = earlier(full=Fate(4.0), regional=Fate(outcome="wrong"))
    setting = Setting({"full": Fate(4.0)}, earlier=trials)
    chosen, search, fake = setting.run("full", "regional", "nested")
    assert fake.tried == ["nested"]
    assert chosen.name == "full" and chosen.resumed
    assert search.trials["regional"].outcome == "wrong"


@pytest.mark.parametrize("before", ["lost", "timed out"])
def test_lost_and_shorter_trials_are_repeated(before: Outcome) -> None:
    trial = Trial("full", "forms", before, "", limit_s=50.0)
    setting = Setting({"full": Fate(4.0)}, earlier={"full": trial})
    chosen, _, fake = setting.run("full")
    assert fake.tried == ["full"] and chosen.name == "full"
    longer = {"full": replace(trial, limit_s=1e6)}
    _, _, fake = Setting({"full": Fate(4.0)}, earlier=longer).run("full")
    assert fake.tried == (["full"] if before == "lost" else [])


# -- any outcomes ----------------------------------------------------------------------

FATES = st.builds(
    Fate,
    step_ms=st.floats(1.0, 20.0),
    outcome=st.sampled_from(
        ["measured"] * 6 + ["wrong", "failed", "timed out", "out of memory", "lost"]
    ),
    spread=st.floats(1.0, 1.5),
    start_s=st.floats(0.1, 60.0),
    peak_bytes=st.integers(100, 3000),
    seconds=st.floats(0.0, 100.0),
    final_ms=st.none() | st.floats(1.0, 20.0),
    final_spread=st.none() | st.floats(1.0, 1.2),
    final_error=st.sampled_from([None] * 5 + ["killed", "CUDA out of memory"]),
    final_verdict=st.sampled_from(["same"] * 5 + ["wrong"]),
    differs_at=st.none() | st.just(5),
)
NAMES = (*FORMS, "core:encode", GRAPH, "regional+graph", "eager+graph", PDL)
NAMES += ("full:reduce-overhead", "full:max-autotune", "full, cpp_wrapper=True")


@settings(max_examples=60, deadline=None)
@given(
    fates=st.dictionaries(st.sampled_from(NAMES), FATES),
    objective=st.sampled_from(["step", "first", "memory", "steps:20", "steps:9999"]),
    effort=st.sampled_from(["quick", "normal", "full"]),
    lanes=st.integers(1, 4),
    device=st.sampled_from(["cpu", "cuda"]),
)
def test_winner_is_safe_and_each_candidate_is_accounted_for(
    fates: dict[str, Fate], objective: str, effort: Any, lanes: int, device: str
) -> None:
    probe = {"blocks": {"Block": 4}, "varying": [], "core": ["encode"]}
    setting = Setting(fates, objective, effort, lanes=lanes, device=device, probe=probe)
    try:
        chosen, search, fake = setting.run()
    except UserError as error:
        assert "--budget" in str(error)
        return
    assert_safe(chosen, search.eager, objective, list(search.trials.values()))
    names = Counter([*search.trials, *skipped(search)])
    assert set(names.values()) == {1} and max(Counter(fake.tried).values()) == 1
    assert {*(each.name for each in setting.candidates()), "eager"} == set(names)
    assert all(skipped(search).values())


def assert_safe(
    chosen: Trial, eager: Trial, objective: str, trials: Sequence[Trial]
) -> None:
    """The winner is verified, measured, and better than eager by the objective."""
    assert chosen.outcome == "measured" and chosen in trials
    if chosen.name == "eager":
        return
    assert "enable_pdl" not in chosen.name or chosen.replays == REPLAYS
    known = Objective.parse(objective)
    assert known.allows(chosen, eager, least=1.05)
    if known.kind in ("step", "first"):
        assert chosen.step_ms is not None and chosen.step_ms < EAGER_MS
    else:
        own, base = known.value(chosen), known.value(eager)
        assert own is not None and base is not None and own < base
