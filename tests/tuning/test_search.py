"""Which candidate is tried, and which one wins, by a table of outcomes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_executor import EAGER, Fake, Fate, Setting

from torchproof.records import Outcome
from torchproof.records.run import Measurement, UserError
from torchproof.tuning.objectives import Objective

FORMS = ("full", "regional", "nested")


def outcome(search: object, name: str) -> str:
    return search.trials[name].outcome  # type: ignore[attr-defined, no-any-return]


# -- who wins --------------------------------------------------------------------------


def test_the_fastest_that_is_surely_faster_wins(tmp_path: Path) -> None:
    fates = {"full": Fate(5.0), "regional": Fate(4.0), "nested": Fate(9.9)}
    chosen, search, _ = Setting(tmp_path, fates).run(*FORMS)
    assert chosen.name == "regional" and chosen.final
    assert search.rows[0].strategy == "eager"


def test_a_gain_that_may_be_none_is_none(tmp_path: Path) -> None:
    chosen, search, fake = Setting(tmp_path, {"full": Fate(8.0, spread=1.4)}).run(
        "full"
    )
    assert chosen.name == "eager"
    # Other processes were asked before it was given up.
    assert fake.repeats == [(0, ("full",)), (1, ("full",))]
    assert "tried" in search.stopped


def test_doubt_is_settled_by_the_finals(tmp_path: Path) -> None:
    fates = {"full": Fate(8.0, spread=1.4, final_spread=1.01)}
    chosen, _, fake = Setting(tmp_path, fates).run("full")
    assert chosen.name == "full" and fake.repeats == [(0, ("full",))]


def test_what_is_right_only_in_its_trial_does_not_win(tmp_path: Path) -> None:
    fates = {"full": Fate(4.0, final_ms=10.5), "regional": Fate(4.1)}
    chosen, _, _ = Setting(tmp_path, fates).run("full", "regional")
    assert chosen.name == "regional"


def test_of_those_too_close_to_tell_the_simpler_wins(tmp_path: Path) -> None:
    switch = "full, cpp_wrapper=True"
    fates = {"full": Fate(5.0), switch: Fate(4.98)}
    chosen, search, _ = Setting(tmp_path, fates).run("full")
    assert chosen.name == "full" and outcome(search, switch) == "measured"
    fates[switch] = Fate(4.5)
    assert Setting(tmp_path, fates).run("full")[0].name == switch


def test_switches_that_help_alone_are_tried_together(tmp_path: Path) -> None:
    both = "full, cpp_wrapper=True, aggressive_fusion=True"
    fates = {
        "full": Fate(5.0),
        "full, cpp_wrapper=True": Fate(4.5),
        "full, aggressive_fusion=True": Fate(4.6),
        both: Fate(4.0),
    }
    chosen, _, _ = Setting(tmp_path, fates).run("full")
    assert chosen.name == both and chosen.stage == "together"
    fates["full, aggressive_fusion=True"] = Fate(5.0)
    assert both not in Setting(tmp_path, fates).run("full")[2].tried


def test_quick_effort_tries_no_switches(tmp_path: Path) -> None:
    _, _, fake = Setting(tmp_path, {"full": Fate(5.0)}, effort="quick").run("full")
    assert fake.tried == ["full"]


def test_nobody_wins_where_all_fail(tmp_path: Path) -> None:
    bad: tuple[Outcome, ...] = ("failed", "wrong", "out of memory")
    fates = {n: Fate(outcome=o) for n, o in zip(FORMS, bad, strict=True)}
    chosen, search, fake = Setting(tmp_path, fates).run(*FORMS)
    assert chosen.name == "eager" and not fake.repeats
    assert [outcome(search, name) for name in FORMS] == [*bad]


def test_parts_are_tried_where_the_whole_fails(tmp_path: Path) -> None:
    fates = {"full": Fate(outcome="failed"), "core:encode": Fate(7.0)}
    chosen, _, fake = Setting(tmp_path, fates).run("full", "nested", "core:encode")
    assert chosen.name == "core:encode" and "nested" in fake.tried


# -- finals ----------------------------------------------------------------------------


def test_the_slower_half_leaves(tmp_path: Path) -> None:
    names = ("full", "regional", "core:a", "core:b")
    fates = {n: Fate(5.0 + i / 10) for i, n in enumerate(names)}
    setting = Setting(tmp_path, fates, effort="quick")
    chosen, search, fake = setting.run(*names)
    assert fake.turned == [names, names[:2]] and chosen.name == "full"
    assert all(search.trials[name].final for name in names)


def test_who_left_does_not_win_by_an_earlier_time(tmp_path: Path) -> None:
    """The machine gets slower after the first rung, for all that are still in it."""
    fates = {"full": Fate(5.0), "regional": Fate(5.2)}

    def gets_slower(fake: Fake) -> None:
        turns = fake.turns

        def slower(names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
            times = 1.0 if rounds == 4 else 1.2
            return tuple(
                replace(row, median_ms=(row.median_ms or 0.0) * times)
                for row in turns(names, rounds)
            )

        fake.turns = slower  # type: ignore[method-assign]

    setting = Setting(tmp_path, fates, effort="quick")
    chosen, _, fake = setting.run("full", "regional", change=gets_slower)
    assert fake.turned == [("full", "regional"), ("full",)]
    assert chosen.name == "full"


def test_a_finalist_that_fails_is_out(tmp_path: Path) -> None:
    fates = {"full": Fate(4.0, final_error="killed"), "regional": Fate(4.1)}
    chosen, search, _ = Setting(tmp_path, fates).run("full", "regional")
    assert chosen.name == "regional" and outcome(search, "full") == "failed"
    assert search.trials["full"].why == "killed"


def test_where_all_finalists_fail_those_after_them_are_compared(tmp_path: Path) -> None:
    fates = {
        "full": Fate(4.0, final_error="killed"),
        "regional": Fate(6.0),  # too far from the leader for the first finals
    }
    chosen, _, fake = Setting(tmp_path, fates).run("full", "regional")
    assert chosen.name == "regional" and chosen.final
    assert [names for _, names in fake.repeats] == [("full",), ("regional",)]


def test_all_finalists_may_fail(tmp_path: Path) -> None:
    fates = {name: Fate(4.0, final_error="killed") for name in FORMS}
    chosen, _, _ = Setting(tmp_path, fates).run(*FORMS)
    assert chosen.name == "eager"


def test_without_room_beside_the_others_a_trial_stands(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory"
    fates = {"full": Fate(4.0, final_error=error), "regional": Fate(4.2)}
    chosen, search, _ = Setting(tmp_path, fates).run("full", "regional")
    assert chosen.name == "full" and outcome(search, "full") == "measured"


def test_where_eager_fails_in_the_finals_trials_stand(tmp_path: Path) -> None:
    def fails(fake: Fake) -> None:
        fake.eager_fails = True

    chosen, search, _ = Setting(tmp_path, {"full": Fate(4.0)}).run("full", change=fails)
    assert chosen.name == "full" and not chosen.final and search.rows == ()


# -- objectives ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "best"),
    [
        ("step", "full"),
        ("first", "regional"),
        ("memory", "nested"),
        ("steps:100", "eager"),
        ("steps:2000", "regional"),
        ("steps:100000", "full"),
    ],
)
def test_each_objective_has_its_own_best(
    tmp_path: Path, objective: str, best: str
) -> None:
    fates = {
        "full": Fate(4.0, start_s=30.0, peak_bytes=900),
        "regional": Fate(5.0, start_s=5.0, peak_bytes=2000),
        "nested": Fate(6.0, start_s=12.0, peak_bytes=500),
    }
    setting = Setting(tmp_path, fates, objective, effort="full")
    assert setting.run(*FORMS)[0].name == best


def test_many_steps_need_a_gain_that_is_sure() -> None:
    objective = Objective.parse("steps:1000000")
    eager = EAGER.trial("eager")
    likely, sure = Fate(9.0, spread=1.2).trial("full"), Fate(9.0).trial("full")
    assert objective.gain(likely, eager) > 1.1  # type: ignore[operator]
    assert not objective.allows(likely, eager, least=1.05)
    assert objective.allows(sure, eager, least=1.05)


def test_less_memory_is_not_bought_with_slower_steps(tmp_path: Path) -> None:
    fates = {"full": Fate(12.0, peak_bytes=100), "regional": Fate(9.0, peak_bytes=800)}
    chosen, _, _ = Setting(tmp_path, fates, "memory").run("full", "regional")
    assert chosen.name == "regional"


def test_eager_starts_sooner_and_spares_nothing(tmp_path: Path) -> None:
    fates = {"full": Fate(9.9), "full+graph": Fate(5.0, start_s=2.0)}
    setting = Setting(tmp_path, fates, "first", device="cuda")
    assert setting.run("full", "full+graph")[0].name == "full+graph"


def test_a_first_call_counts_only_of_what_is_faster(tmp_path: Path) -> None:
    fates = {"full": Fate(12.0, start_s=0.2), "regional": Fate(5.0, start_s=9.0)}
    chosen, _, _ = Setting(tmp_path, fates, "first").run("full", "regional")
    assert chosen.name == "regional"


# -- time ------------------------------------------------------------------------------


def test_one_that_hangs_leaves_time_for_the_others(tmp_path: Path) -> None:
    fates = {"full": Fate(4.0, seconds=1e9), "regional": Fate(5.0, seconds=20.0)}
    setting = Setting(tmp_path, fates, budget_s=600)
    chosen, search, fake = setting.run("full", "regional")
    assert outcome(search, "full") == "timed out" and chosen.name == "regional"
    assert fake.limits["full"] < 300


def test_a_short_budget_is_for_one_trial_if_it_needs_it(tmp_path: Path) -> None:
    fates = {"full": Fate(4.0, seconds=80.0)}
    setting = Setting(tmp_path, fates, budget_s=100)
    chosen, search, _ = setting.run("full", "regional")
    assert chosen.name == "full" and "left of the budget" in search.stopped
    assert search.skipped[0].name == "regional"


@pytest.mark.parametrize(("others_s", "spent"), [(60.0, False), (1e9, True)])
def test_a_budget_with_time_left_is_not_called_spent(
    tmp_path: Path, others_s: float, spent: bool
) -> None:
    fates = {name: Fate(4.0, seconds=others_s) for name in FORMS}
    first_s = 40.0 if spent else 60.0
    fates["full"] = Fate(4.0, seconds=first_s)
    _, search, _ = Setting(tmp_path, fates, budget_s=100).run(*FORMS)
    assert ("spent" in search.stopped) == spent
    assert ("left of the budget" in search.stopped) != spent


@pytest.mark.parametrize("budget_s", [1e-3, 5.0, 200.0])
def test_a_budget_that_nothing_fits_in_decides_nothing(
    tmp_path: Path, budget_s: float
) -> None:
    fates = {name: Fate(4.0, seconds=1e9) for name in FORMS}
    with pytest.raises(UserError, match=f"--budget {budget_s:g}s.*at least") as raised:
        Setting(tmp_path, fates, budget_s=budget_s).run(*FORMS)
    least = re.search(r"at least --budget (\d+)s", str(raised.value))
    assert least is not None and float(least[1]) > budget_s


def test_a_timeout_of_the_users_is_no_lack_of_budget(tmp_path: Path) -> None:
    fates = {"full": Fate(seconds=1e9)}
    chosen, search, fake = Setting(tmp_path, fates, timeout_s=7.0).run("full")
    assert chosen.name == "eager" and "tried" in search.stopped
    assert fake.limits["full"] == 7.0


@pytest.mark.parametrize(
    ("pass_ms", "rounds"), [(1.0, [4, 12]), (6e3, [4, 8]), (1e5, [4])]
)
def test_finals_of_slow_steps_end_with_the_budget(
    tmp_path: Path, pass_ms: float, rounds: list[int]
) -> None:
    fates = {"full": Fate(4.0, pass_ms=pass_ms)}
    setting = Setting(tmp_path, fates, effort="quick", budget_s=100)
    chosen, _, fake = setting.run("full")
    assert fake.rounds == rounds and chosen.name == "full"


# -- order and bounds ------------------------------------------------------------------


def test_a_name_given_twice_is_one_candidate(tmp_path: Path) -> None:
    setting = Setting(tmp_path, {"full": Fate(4.0)}, effort="quick", lanes=3)
    _, _, fake = setting.run("full", "regional", "full")
    assert sorted(fake.tried) == ["full", "regional"]


def test_what_builds_on_a_failure_is_left_out(tmp_path: Path) -> None:
    fates = {"full": Fate(outcome="failed")}
    _, search, fake = Setting(tmp_path, fates).run("full", "full:max-autotune")
    assert fake.tried == ["full"]
    (skip,) = search.skipped
    assert skip.name == "full:max-autotune"
    assert "full," in skip.why and "failed" in skip.why


def test_a_graph_waits_for_what_it_records(tmp_path: Path) -> None:
    setting = Setting(tmp_path, {}, device="cuda", lanes=4, effort="quick")
    _, _, fake = setting.run("full+graph", "full", "regional")
    assert fake.tried.index("full") < fake.tried.index("full+graph")


# -- going on --------------------------------------------------------------------------


def test_what_was_tried_is_not_tried_again(tmp_path: Path) -> None:
    fates = {"full": Fate(4.0), "regional": Fate(outcome="wrong")}
    Setting(tmp_path, fates, effort="quick").run("full", "regional")
    again = Setting(tmp_path, fates, effort="quick", resume=True)
    chosen, search, fake = again.run("full", "regional", "nested")
    assert fake.tried == ["nested"] or not fake.tried  # full prestarted nested
    assert chosen.name == "full" and chosen.resumed
    assert outcome(search, "regional") == "wrong"


@pytest.mark.parametrize("outcome", ["lost", "timed out"])
def test_what_was_lost_or_had_less_time_is_tried_again(
    tmp_path: Path, outcome: Outcome
) -> None:
    full = {"full": Fate(seconds=100.0)}
    bad = {"full": Fate(outcome="lost")} if outcome == "lost" else full
    Setting(tmp_path, {**bad, "regional": Fate(5.0)}, timeout_s=50).run(
        "full", "regional"
    )
    again = Setting(tmp_path, {"full": Fate(4.0, seconds=100.0)}, resume=True)
    chosen, _, fake = again.run("full", "regional")
    assert "full" in fake.tried and "regional" not in fake.tried
    assert chosen.name == "full"
