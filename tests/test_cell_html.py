"""A run as the output of a notebook cell."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace

import bench_runs
import check_runs
import fix_runs
import load_runs
import pytest
import tune_runs

from torchproof.records import SHOWN, Run, cells
from torchproof.report import render, render_cell

importlib.import_module("torchproof.api")  # it sets how a run is shown

RUNS = {
    "check": Run("1", "live:Net", "full", {}, {}, findings=(check_runs.ITEM,)),
    "bench": bench_runs.bench(
        [bench_runs.row("eager", 1.0), bench_runs.row("full", 0.5)]
    ),
    "tune": tune_runs.tune(),
    "fix": fix_runs.run_of(),
    "loadtest": load_runs.run([load_runs.clean()]),
}


@pytest.mark.parametrize("verb", RUNS)
def test_each_verb_is_shown(verb: str) -> None:
    run = RUNS[verb]
    page = run._repr_html_()
    assert page is not None and f"torchproof {verb}" in page and run.id in page
    for tag in ("div", "details", "table", "span"):
        assert page.count(f"<{tag}") == page.count(f"</{tag}>"), tag
    # A notebook that is not trusted removes these, and colours have to suit any theme.
    assert not re.search(r"<(script|style|link|iframe)|\bon\w+=|url\(", page)


def test_nothing_in_a_run_becomes_markup() -> None:
    evil = "<img src=x onerror=alert(1)>"
    finding = replace(
        check_runs.ITEM, message=evil, context=(evil,), context_from=42, file=evil
    )
    run = replace(RUNS["check"], findings=(finding,), target=evil, error=evil)
    page = render_cell(run, {evil: evil})
    assert "<img" not in page and page.count("&lt;img") >= 5


def test_a_run_in_one_line() -> None:
    assert repr(RUNS["check"]) == "<Run 1: check of live:Net, open findings: 1>"
    assert "\n" not in repr(replace(RUNS["bench"], error="no device"))


@pytest.mark.parametrize("verb", RUNS)
def test_a_printed_run_is_the_report_of_the_command_line(verb: str) -> None:
    run = RUNS[verb]
    assert f"{run!s}\n" == render(run, "text")
    assert str(run) == f"{run}" and "\x1b" not in str(run)
    assert str(run).count("\n") > 3 and "\n" not in repr(run)


def test_a_run_that_nothing_can_render_is_printed_in_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(SHOWN, "text")
    assert str(RUNS["check"]) == repr(RUNS["check"])


def test_a_report_of_a_terminal_is_text() -> None:
    texts: list[str] = []
    printer = type("Printer", (), {"text": staticmethod(texts.append)})
    RUNS["check"]._repr_pretty_(printer, False)
    assert "GB101" in texts[0] and "<" not in texts[0].partition("`")[0]
    assert SHOWN.keys() == {"html", "text"}


def test_places() -> None:
    assert cells.place("In [3]", 7) == "In [3], line 7"
    assert cells.place("/home/me/In [12]", 7) == "In [12], line 7"
    assert cells.place("In [3]/model.py", 7) == "In [3]/model.py:7"
    assert cells.place("model.py", None) == "model.py"
