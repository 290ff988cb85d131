"""The plot of a search, as records, and the page around it as text."""

from __future__ import annotations

import math
from typing import Any

import bench_runs
import html_runs
import pytest
import tune_runs
from facts import missing
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_html import page

from torchproof.report import render
from torchproof.report.html import axes, scatter
from torchproof.report.html.scatter import Mark, Plot
from torchproof.report.search_words import WARM, search_of


def plotted(*trials: dict[str, Any], chosen: str = "b") -> Plot:
    run = tune_runs.tune({"measurements": ()}, trials=list(trials), chosen=chosen)
    found = scatter.plot(search_of(run))
    assert found is not None
    return found


def trial(name: str, first_s: float | None, step_ms: float | None) -> dict[str, Any]:
    return tune_runs.trial(name, step_ms, first_call_s=first_s)


def by_name(found: Plot) -> dict[str, Mark]:
    return {mark.name: mark for mark in found.marks}


def test_a_wide_range_is_drawn_by_its_powers_of_ten() -> None:
    found = plotted(trial("a", 0.01, 1.0), trial("b", 1.0, 1.5), trial("c", 100, 2.0))
    assert (found.x.log, found.y.log) == (True, False)
    marks = by_name(found)
    assert marks["b"].x == pytest.approx(50, abs=0.1)  # in the middle, by its logarithm
    assert marks["b"].y == pytest.approx(50, abs=0.1)
    assert marks["a"].x == pytest.approx(100 - marks["c"].x, abs=0.1)
    assert marks["a"].y > marks["c"].y  # the longer step stands higher
    ticks = {text: at for at, text in found.x.ticks}
    assert ticks["1 s"] == pytest.approx(marks["b"].x, abs=0.1)
    assert "10 ms" in ticks and "100 s" in ticks


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9),
    st.floats(1e-6, 1e6),
)
@example([999974.0], 1e-6)
def test_any_times_stand_inside_with_a_few_ticks(
    values: list[float], more: float
) -> None:
    found = plotted(
        *(trial(f"t{i}", value, 1 / value) for i, value in enumerate(values)),
        trial("b", more, more),
    )
    for mark in found.marks:
        assert 0 <= mark.x <= 100 and 0 <= mark.y <= 100
    for axis in (found.x, found.y):
        assert 1 <= len(axis.ticks) <= axes.MOST_TICKS + 1
        places = [at for at, _ in axis.ticks]
        assert all(0 <= at <= 100 for at in places)
        assert len({text for _, text in axis.ticks}) == len(places)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 100), st.floats(0.5, 50)), min_size=2, max_size=30
    )
)
def test_no_number_covers_another_label(times: list[tuple[float, float]]) -> None:
    found = plotted(*(trial(f"t{i}", *each) for i, each in enumerate(times)))
    boxes = [scatter._box(mark) for mark in found.marks if mark.label]
    for index, box in enumerate(boxes):
        assert not any(scatter._overlap(box, other) for other in boxes[index + 1 :])


def test_eager_and_the_chosen_one_are_named_and_on_top() -> None:
    run = tune_runs.tune()
    found = scatter.plot(search_of(run))
    assert found is not None
    assert [m.label for m in found.marks[-2:]] == ["eager", "regional+graph"]
    assert [m.kind for m in found.marks[-2:]] == ["eager", "chosen"]
    others = {m.name: m.label for m in found.marks[:-2] if m.label}
    assert others["full"] == "2" and others["regional"] == "5"
    assert [m.name for m in found.marks if m.warm] == [tune_runs.SWITCH]
    chosen = found.words.rpartition("chosen")[2]
    assert missing(chosen, "regional+graph", "1.20 ms", "4.10 s") == []


def test_what_is_wrong_or_has_no_first_call_is_not_drawn() -> None:
    wrong = {**trial("wrong", 1.0, 0.1), "outcome": "wrong"}
    found = plotted(trial("a", 1.0, 1.0), trial("b", 2.0, 2.0), trial("c", None, 3.0))
    assert set(by_name(found)) == {"a", "b"}
    assert found.missing == ("c",)
    found = plotted(trial("a", 1.0, 1.0), trial("b", 2.0, 2.0), wrong)
    assert set(by_name(found)) == {"a", "b"} and found.missing == ()


def test_one_mark_is_no_plot() -> None:
    run = tune_runs.tune({"measurements": ()}, trials=[trial("a", 1.0, 1.0)])
    assert scatter.plot(search_of(run)) is None
    assert "figure" not in {tag for tag, _ in page(run).tags}


def test_times_that_are_all_the_same_are_drawn() -> None:
    found = plotted(trial("a", 1.0, 1.0), trial("b", 1.0, 1.0))
    assert {(m.x, m.y) for m in found.marks} == {(50.0, 50.0)}
    assert all(math.isfinite(at) for at, _ in (*found.x.ticks, *found.y.ticks))


# -- the page --------------------------------------------------------------------------


def test_the_page_of_a_search() -> None:
    found = page(tune_runs.tune())
    for told in (
        f"regional+graph {tune_runs.TUNING['why']}",
        f"Launch-bound: {tune_runs.PROBE['bound_why']}",
        "eager 2.56x faster",
        "1.21 ms eager 3.10 ms",
        "call 4.10 s",
        "memory 512 MiB",
        "Outputs same",
        "from torchproof import regions",
        'model = torchproof.compile(model, recipe="torchproof.toml")',
        f"full:max-autotune timed out {tune_runs.TRIALS[7]['why']}",
        f"{tune_runs.SKIPPED[2]['why']} full+graph, full:max-autotune+graph",
        tune_runs.TUNING["stopped"],
        WARM,
    ):
        assert told in found.text
    anchors = {values.get("id") for _, values in found.tags}
    assert {"recipe", "trials", "strategies", "run"} <= anchors
    assert "findings" not in anchors  # it did not look for any
    links = {values["href"] for tag, values in found.tags if tag == "a"}
    assert {f"#{name}" for name in ("recipe", "trials")} <= links
    assert links <= {f"#{anchor}" for anchor in anchors}


def test_finals_of_a_switch_are_drawn_under_their_name() -> None:
    rows = (
        tune_runs.row("eager", tune_runs.EAGER_MS),
        tune_runs.row("full", 1.1, variant={"config": tune_runs.SWITCH[6:]}),
    )
    run = tune_runs.tune({"measurements": rows}, chosen=tune_runs.SWITCH)
    text = page(run).text
    assert "Finals strategy" in text and f"{tune_runs.SWITCH} 1.10 ms" in text
    assert "vs control" not in text


def test_eager_is_said_to_stay() -> None:
    told = page(tune_runs.tune(chosen="eager", why="nothing beats it")).text
    assert "stay eager" in told and "othing beats it" in told


def test_an_interrupted_search_is_told_so() -> None:
    run = tune_runs.tune({"ending": "interrupted"}, chosen=None, why=None, recipe=None)
    text = page(run).text
    assert (
        "(interrupted)" in text and "(interrupted)" not in page(tune_runs.tune()).text
    )
    assert tune_runs.SOURCE.split("\n")[0] not in text


def test_checks_and_benches_have_no_plot() -> None:
    for run in (html_runs.check(), bench_runs.bench([bench_runs.row("eager", 1.0)])):
        text = render(run, "html")
        assert "<figure" not in text and 'id="recipe"' not in text
