"""Parts of reports that no snapshot shows: charts, recipes, runs in a notebook."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import replace
from typing import Any

import pytest
import tune_runs
from bench_runs import bench, row
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_runs import RUNS

from torchproof.records import Run, cells
from torchproof.report import (
    agent,
    github,
    gitlab,
    html,
    markdown,
    render,
    render_cell,
    search_words,
    text,
)
from torchproof.report.charts import axes, bars, scatter
from torchproof.report.charts.scatter import Mark, Plot
from torchproof.report.document import (
    Card,
    Code,
    Facts,
    Fold,
    Group,
    Items,
    Listing,
    Paragraph,
    Section,
    Steps,
    Table,
    Title,
    Verdict,
    View,
)
from torchproof.report.search_words import search_of
from torchproof.strategies import strategy
from torchproof.strategies.recipe import Recipe

importlib.import_module("torchproof.api")  # it sets how a run is shown

# -- documents -------------------------------------------------------------------------

NEW = (
    Title("A new verb", "model.py", "new"),
    Verdict("good", "VERDICT", "it works", views=View.ALL),
    Section(
        "SECTION",
        (
            Paragraph("PARAGRAPH", "Label"),
            Items(("ITEM",), "List"),
            Facts((("name", "FACT"),), "Facts"),
            Steps((("Do it", "COMMAND"),), "Steps"),
            Listing("CODE = 1", "python", "Caption"),
            Table("Table", ("name", "value"), (("row", "CELL"),), ("LINE",)),
            Group((Paragraph(("a ", Code("GROUPED"))),)),
            Fold("More", (Paragraph("FOLDED"),)),
            Card(("a ", Code("CARD")), ("TAG",)),
            Paragraph("HIDDEN", views=View.REVIEW),
        ),
        anchor="findings",
    ),
)
WORDS = ("PARAGRAPH", "ITEM", "FACT", "COMMAND", "CODE", "CELL", "LINE", "GROUPED")
WORDS += ("FOLDED", "CARD", "TAG")


@pytest.mark.parametrize("format", [text, markdown, agent, html])
def test_a_new_document_has_every_format(format: Any) -> None:
    arguments = (RUNS["check-clean"], NEW) if format is html else (NEW,)
    shown = format.render(*arguments)
    assert [word for word in WORDS if word not in shown] == []
    assert "HIDDEN" not in shown


def test_a_new_document_annotates_its_fixes_and_failures() -> None:
    failed = Items(("it broke",), style="failures", views=View.REVIEW)
    assert "::error title=torchproof::it broke" in github.render((*NEW, failed))
    assert "it broke" in gitlab.render((*NEW, failed))


# -- charts ----------------------------------------------------------------------------


def test_one_slow_round_does_not_flatten_the_chart() -> None:
    eager = row("eager", 1.0)
    slow = replace(eager, rounds_ms=(*eager.rounds_ms, (50.0,)))
    chart = bars.strategies(bench([slow]))
    assert chart.beyond == 1 and chart.bars[0].length > 80


def plotted(*trials: dict[str, Any]) -> Plot:
    run = tune_runs.tune({"measurements": ()}, trials=list(trials), chosen="b")
    found = scatter.plot(search_of(run))
    assert found is not None
    return found


def trial(name: str, first_s: float | None, step_ms: float | None) -> dict[str, Any]:
    return tune_runs.trial(name, step_ms, first_call_s=first_s)


def by_name(found: Plot) -> dict[str, Mark]:
    return {mark.name: mark for mark in found.marks}


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9),
    st.floats(1e-6, 1e6),
)
@example([999974.0], 1e-6)
@example([1.0], 1.0)
def test_marks_and_ticks_are_inside_the_plot(values: list[float], more: float) -> None:
    marks = [trial(f"t{i}", value, 1 / value) for i, value in enumerate(values)]
    found = plotted(*marks, trial("b", more, more))
    assert all(0 <= mark.x <= 100 and 0 <= mark.y <= 100 for mark in found.marks)
    boxes = [scatter._box(mark) for mark in found.marks if mark.label]
    for index, box in enumerate(boxes):
        assert not any(scatter._overlap(box, other) for other in boxes[index + 1 :])
    for axis in (found.x, found.y):
        assert 1 <= len(axis.ticks) <= axes.MOST_TICKS + 1
        assert all(0 <= at <= 100 for at, _ in axis.ticks)
        assert len({text for _, text in axis.ticks}) == len(axis.ticks)


def test_wrong_trial_is_not_plotted() -> None:
    wrong = {**trial("wrong", 1.0, 0.1), "outcome": "wrong"}
    found = plotted(trial("a", 1.0, 1.0), trial("b", 2.0, 2.0), wrong)
    assert set(by_name(found)) == {"a", "b"} and found.missing == ()
    found = plotted(trial("a", 1.0, 1.0), trial("b", 2.0, 2.0), trial("c", None, 3.0))
    assert set(by_name(found)) == {"a", "b"} and found.missing == ("c",)


# -- recipes ---------------------------------------------------------------------------


def test_any_path_of_a_recipe_can_be_pasted() -> None:
    odd = 'a "b" \\ \u00e9.toml'
    line = search_words.applied(search_of(tune_runs.tune(recipe_file=odd)))
    [call] = [n for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Call)]
    assert ast.literal_eval(call.keywords[0].value) == odd


@pytest.mark.parametrize(
    ("name", "train", "verb"),
    [
        ("full+graph", True, "step = torchproof.graph"),
        ("full+graph", False, "model = torchproof.compile"),
        ("full", True, "model = torchproof.compile"),
    ],
)
def test_graph_of_a_training_step_is_applied_as_one(
    name: str, train: bool, verb: str
) -> None:
    recipe = Recipe(strategy.parse(name), train=train).to_json()
    line = search_words.applied(search_of(tune_runs.tune(recipe=recipe)))
    assert line.startswith(f"{verb}(model, recipe=")


# -- in a notebook ---------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_run_is_shown_in_a_cell_and_printed(name: str) -> None:
    run: Run = RUNS[name]
    page = run._repr_html_()
    assert page is not None and f"torchproof {run.verb}" in page
    for tag in ("div", "details", "table", "span"):
        assert page.count(f"<{tag}") == page.count(f"</{tag}>"), tag
    # A notebook that is not trusted removes these, and colours have to suit any theme.
    assert not re.search(r"<(script|style|link|iframe|img|svg)|<[^>]* on\w+=", page)
    assert f"{run!s}\n" == render(run, "text")
    assert "\n" not in repr(run)


def test_edited_cell_is_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>"
    assert "<img" not in render_cell(RUNS["fix"], {evil: evil})


def test_only_a_cell_is_named_as_one() -> None:
    assert cells.place("In [3]", 7) == "In [3], line 7"
    assert cells.place("/home/me/In [12]", 7) == "In [12], line 7"
    assert cells.place("In [3]/model.py", 7) == "In [3]/model.py:7"
    assert cells.place("model.py", None) == "model.py"
