"""A load test as a reader sees it: text, Markdown, annotations, SARIF and the log."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import load_runs
import pytest
from facts import missing

from torchproof.records import Run
from torchproof.report import formats, render
from torchproof.report.load_sections import share
from torchproof.report.log import observation


def text(run: Run, **settings: Any) -> str:
    return render(run, "text", **settings)


def row(shown: str, strategy: str, column: str) -> list[str]:
    """The cells of a strategy in the table that has this column."""
    lines = shown.splitlines()
    heads = (n for n, line in enumerate(lines) if line.startswith("strategy"))
    (start,) = (n for n in heads if column in lines[n].split())
    return next(line.split() for line in lines[start:] if line.startswith(strategy))


@pytest.fixture(scope="module")
def run() -> Run:
    return load_runs.run()


@pytest.fixture(scope="module")
def shown(run: Run) -> str:
    return text(run)


def test_a_saved_load_test_is_the_same(run: Run) -> None:
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_the_opening_has_question_and_answer(shown: str) -> None:
    head = shown.split("\n\n")[0]
    assert missing(head, "model.py:make", "cpu", "50 requests/s", "seed 0") == []
    assert missing(head, "poisson", "1500 requests", "p99 at most 50 ms") == []
    assert "missed by eager" in head
    # Two stalls do not prove that it is missed.
    assert "undecided for full, compile:nowait" in head


def test_each_strategy_has_its_percentiles(run: Run, shown: str) -> None:
    cells = row(shown, "full", "p99.9")
    measured = run.load_test.results[0].latency
    for cell, percentile in zip(cells[1:4], measured, strict=False):
        assert float(cell) == pytest.approx(percentile.value_ms, rel=0.01)
    assert row(shown, "compile:nowait", "p99.9")[3:] == ["-"] * 4


def test_too_few_requests_have_no_percentile_but_a_number(shown: str) -> None:
    assert missing(shown, "p99 needs 459", "p99.9 needs 4603") == []


def test_the_cold_phase_is_part_of_the_result(run: Run, shown: str) -> None:
    cold = run.load_test.results[0].cold
    cells = " ".join(row(shown, "full", "goodput"))
    assert (
        missing(cells, "undecided", "6.21 s", f"{cold.missed} of {cold.requests}") == []
    )
    assert "undecided" in row(shown, "compile:nowait", "goodput")


def test_causes_come_with_requests_shares_and_remedies(shown: str) -> None:
    flat = " ".join(shown.split())
    assert missing(flat, "LT101", "request 700", "model.py:42", "LT103") == []
    assert missing(flat, "request 1100", "LT102", "request 0", "unexplained") == []
    after = shown.partition("Next:")[2]
    assert missing(after, load_runs.REMEDY, "--requests 2471", "rule LT101") == []


def test_a_strategy_that_cannot_keep_up_is_named(run: Run, shown: str) -> None:
    unserved = run.load_test.results[1].unserved
    assert unserved
    assert f"{unserved} of 1500" in shown


def test_a_clean_load_test_is_short_and_blames_nothing() -> None:
    results = [load_runs.clean("eager", middle_s=0.008), load_runs.clean()]
    clean = text(load_runs.run(results))
    assert "LT1" not in clean and "unexplained" not in clean
    assert "met by eager, full" in clean
    assert 12 <= len(clean.splitlines()) <= 25


def test_without_an_objective_there_is_no_verdict() -> None:
    result = dataclasses.replace(
        load_runs.clean(), verdict=None, goodput_rate=None, cold=None
    )
    plain = text(load_runs.run([result], test={"objective": None}))
    assert "--slo" in plain
    assert row(plain, "full", "goodput")[1:] == ["-"] * 5


def test_failures_are_counted_with_their_error() -> None:
    result = dataclasses.replace(
        load_runs.clean(), failed=3, errors={"RuntimeError: no memory": 3}
    )
    assert "3 of 1500 requests: RuntimeError: no memory" in text(
        load_runs.run([result])
    )


def test_a_search_and_a_text_model_have_their_numbers() -> None:
    searched = text(load_runs.run([load_runs.searched()]))
    assert "150/s" in row(searched, "full", "goodput")
    assert "--find-rate" not in searched
    generated = text(load_runs.run([load_runs.generating()]))
    assert missing(generated, "812/s", "1640/s", "0.410", "rejected 4") == []


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_lines_fit(run: Run, width: int) -> None:
    for verbose in (False, True):
        lines = text(run, width=width, verbose=verbose).splitlines()
        commands = [line for line in lines if "torchproof show" in line]
        assert all(len(line) <= width for line in lines if line not in commands)


def test_verbose_has_intervals_and_what_was_not_observed(run: Run) -> None:
    shown = text(run, verbose=True)
    p50 = run.load_test.results[0].latency[0]
    assert f"{p50.low_ms:.2f}-{p50.high_ms:.2f}" in shown
    assert "triton" in shown


def test_a_run_that_ended_before_any_result() -> None:
    empty = load_runs.run([], error="the target is missing")
    for format in formats.FORMATS:
        assert render(empty, format)
    assert "the target is missing" in text(empty)
    assert text(dataclasses.replace(empty, load_test=None))


def test_markdown_has_every_strategy_and_cause(run: Run) -> None:
    page = render(run, "md")
    for result in run.load_test.results:
        assert f"| {result.strategy} |" in page
    assert missing(page, "LT101", "LT102", "LT103", load_runs.REMEDY, "p99.9") == []


def test_annotations_and_sarif_have_the_findings(run: Run) -> None:
    lines = render(run, "github").splitlines()
    assert lines[0].startswith("::error file=model.py,line=42,title=LT101")
    assert "missed by eager" in lines[-1] and not lines[-1].startswith("::")
    (result,) = json.loads(render(run, "sarif"))["runs"][0]["results"]
    assert result["ruleId"] == "LT101"


def test_the_log_says_what_was_learned(run: Run) -> None:
    assert missing(observation.sentence(run), "model.py:make", "p99", "full") == []
    details = " ".join(observation.details(run))
    assert missing(details, "LT101", "request 700", "could not keep up") == []


def test_shares_never_round_to_all_or_nothing() -> None:
    assert [share(part) for part in (None, 0.0, 0.004, 0.61, 0.998, 1.0)] == [
        *("-", "0%", "<1%", "61%", ">99%", "100%")
    ]
