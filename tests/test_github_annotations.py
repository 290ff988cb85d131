"""Annotations of a GitHub job: the commands as the runner reads them."""

from __future__ import annotations

import re
from dataclasses import replace

import bench_runs
import check_runs
import pytest
from check_runs import FULL, ITEM, NOWHERE, READ, SIZE
from facts import missing
from hypothesis import HealthCheck, given, settings

from torchproof.records.run import Run
from torchproof.report import render, run_words

COMMAND = re.compile(r"::(?P<level>\w+) (?P<properties>[^:]*)::(?P<text>.*)")


def lines(run: Run) -> list[str]:
    return render(run, "github").splitlines()


def read(line: str) -> tuple[str, dict[str, str], str]:
    """A command as GitHub's runner takes it apart."""
    found = COMMAND.fullmatch(line)
    assert found, line
    pairs = dict(pair.split("=", 1) for pair in found["properties"].split(","))
    plain = {name: _unescaped(value) for name, value in pairs.items()}
    return found["level"], plain, _unescaped(found["text"])


def _unescaped(text: str) -> str:
    for code, letter in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n")):
        text = text.replace(code, letter)
    return text.replace("%25", "%")


def test_an_annotation_is_at_its_line_and_says_what_why_and_fix() -> None:
    level, properties, text = read(lines(FULL)[0])
    assert level == "error"
    assert properties == {
        "file": "model.py",
        "line": "42",
        "endLine": "42",
        "col": "16",
        "endColumn": "27",
        "title": f"GB101 {ITEM.category}",
    }
    what, why, fix = text.split("\n")
    assert what == ITEM.message
    assert why == f"Why: {ITEM.cause}." and fix == f"Fix: {ITEM.fix}."


def test_worst_first_and_only_what_is_open() -> None:
    run = check_runs.check(READ, NOWHERE, SIZE, *FULL.findings)
    *told, summary = lines(run)
    levels = [read(line)[0] for line in told]
    assert levels == ["error", "warning", "warning", *["notice"] * 4]
    assert summary.startswith("torchproof: 7 ")
    facts = ("1 high", "2 medium", "4 low", "1 resolved", run.target, run.id)
    assert missing(summary, *facts) == []


def test_without_a_file_there_is_no_place() -> None:
    assert set(read(lines(check_runs.check(NOWHERE))[0])[1]) == {"title"}


def test_a_bench_is_its_decision() -> None:
    rows = [bench_runs.row("eager", 1.0), bench_runs.row("full", 0.5)]
    (summary,) = lines(bench_runs.bench(rows))
    assert summary.startswith("torchproof: ")
    assert missing(summary, "bench", "model.py:make", "keep compiled") == []


def test_a_clean_run_is_one_line() -> None:
    (summary,) = lines(check_runs.check())
    assert summary.startswith("torchproof: 0 ") and "model.py:make" in summary


@pytest.mark.parametrize(
    "text", ["100%, a:b\nc", "::error::x", "%0A", "a\r\n::stop-commands::t"]
)
def test_text_cannot_end_a_command_or_begin_one(text: str) -> None:
    finding = replace(ITEM, message=text, file=f"dir/{text}.py")
    found = lines(check_runs.check(finding))
    assert len(found) == 2
    _, properties, told = read(found[0])
    plain = " ".join(text.split())
    assert properties["file"] == f"dir/{plain}.py"
    assert told.startswith(plain)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(check_runs.runs())
def test_any_run_has_one_command_an_open_finding(run: Run) -> None:
    render(run, "github").encode()
    *told, summary = render(run, "github").removesuffix("\n").split("\n")
    still_open = sum(f.status == "open" for f in run.findings)
    assert len(told) == still_open + len(run_words.failures(run))
    assert all(COMMAND.fullmatch(line) for line in told)
    assert not summary.lstrip().startswith("::")
