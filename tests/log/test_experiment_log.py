"""Entries of the log: what a run, a plan and a look back say, from data alone."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import bench_runs
import check_runs
import pytest
from check_runs import ITEM

from torchproof.records import store
from torchproof.records.run import Part, Run
from torchproof.report import log
from torchproof.report.log import review

LOG = Path("experiment-log.md")
HIGH = replace(ITEM, message="`y.item()` splits the graph of f<T>, in every call")


def check(**more: Any) -> Run:
    counts = {"calls": 3, "compiled_calls": 3, "graphs": 2, "graph_breaks": 1}
    counts |= {"recompiles": 0, "cudagraph_skips": None}
    return replace(check_runs.check(HIGH, counts=counts), **more)


def later(run: Run, **more: Any) -> Run:
    """The run as if it had been started after every plan of these tests."""
    return replace(run, started="2999-01-01T00:00:00", **more)


RunLog = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def run_log(answer: RunLog) -> RunLog:
    return functools.partial(answer, "log")


# -- an observation --------------------------------------------------------------------


def test_the_text_of_a_run_cannot_make_an_entry() -> None:
    trap = "x\0\x1b[31m\udc80\n\n## 2020-01-01 - Plan: trap\n\n"
    trap += "- Entry: `20200101-0000-plan`\n```\n"
    evil = check(
        target=trap,
        command=f"a `b` {trap}",
        environment={"gpu": trap, "torch": trap},
        findings=(replace(HIGH, message=trap, file=trap),),
        error=trap,
    )
    log.add(LOG, evil)
    added = log.add(LOG, check(id="another"))
    kinds = [entry.kind for entry in log.entries(LOG.read_text())]
    assert kinds == ["Observation", "Observation"] and not added.note
    assert "x\\x00\\x1b[31m\\udc80" in LOG.read_text()


def test_a_run_is_added_twice_only_with_again(run_log: RunLog) -> None:
    saved = store.save(check())
    assert run_log("add")[0] == 0
    before = LOG.read_bytes()
    code, _, err = run_log("add", saved.id)
    assert code == 2 and saved.id in err and "--again" in err
    assert "experiment-log.md, line 7" in err
    assert LOG.read_bytes() == before
    assert run_log("add", saved.id, "--again")[0] == 0
    assert LOG.read_bytes().startswith(before)
    ids = [entry.id for entry in log.entries(LOG.read_text())]
    assert len(set(ids)) == 2
    # The same name in another folder is another run.
    log.add(LOG, replace(saved, started="2026-05-05T05:05:05"))


# -- plans and looking back ------------------------------------------------------------


def test_a_retrospective_compares_the_expected_with_the_measured() -> None:
    fast = bench_runs.row("full", 0.5)
    unsure = bench_runs.row("full", 0.9, noise=0.3)
    expect = "graph_breaks=0,speed>=1.2,recompiles<1,first_call_s<=1,skipped_frames=0"
    added = log.plan(LOG, "cure it", expect=expect, target="model.py:make")
    LOG.write_text(LOG.read_text().replace("- recomp", "- the loss falls\n- recomp"))
    runs = [
        check(started="2000-01-01T00:00:00", counts={"skipped_frames": 0}),
        later(check(), measurements=(unsure,)),
        later(check(id="b"), measurements=(fast,), counts={"graph_breaks": 0}),
        later(check(id="c", counts={"graph_breaks": 9}), ending="timeout"),
        later(check(id="d", counts={"graph_breaks": 7}), target="other.py:make"),
    ]
    log.retrospective(LOG, runs)
    plan, back = log.entries(LOG.read_text())
    assert back.named("Plan") == plan.id == added.id
    assert (back.kind, back.title) == ("Retrospective", "cure it")
    table = [line for line in back.section("Key figures") if line.startswith("|")]
    assert table[2:8] == [
        "| graph_breaks = 0 | 0 | met | `b` |",
        "| speed >= 1.2 | 2.00x (1.96-2.04), full | met | `b` |",
        "| the loss falls | - | not measured | - |",
        "| recompiles < 1 | 0 | met | `20260102-0304-model` |",
        "| first_call_s <= 1 | 12.0 s, full | missed | `b` |",
        "| skipped_frames = 0 | - | not measured | - |",
    ]
    text = "\n".join(back.lines)
    assert "3 met, 1 missed, 2 not measured; 3 runs" in text
    assert "`c`" in text and "other.py" not in text
    assert review.LEARNED in text


def test_a_run_of_another_machine_counts_once_it_is_in_the_log(run_log: RunLog) -> None:
    log.plan(LOG, "a", expect="graph_breaks=1")
    Path("gpu.json").write_text(json.dumps(later(check(id="gpu")).to_json()))
    Path("broken.json").write_text("{")
    assert run_log("add", "gpu.json")[0] == 0
    log.add(LOG, check(id="broken"), came_from="broken.json")
    log.add(LOG, check(id="lost"), came_from="nowhere.json")
    assert run_log("retrospective")[0] == 0
    text = "\n".join(log.entries(LOG.read_text())[-1].lines)
    assert "| graph_breaks = 1 | 1 | met | `gpu` |" in text
    assert "; 1 run " in text


def test_interval_across_the_bound_decides_nothing() -> None:
    log.plan(LOG, "a", expect="speed>=1.1,median_ms<0.5")
    row = bench_runs.row("full", 0.9, noise=0.3)
    log.retrospective(LOG, [later(check(), measurements=(row,))])
    text = "\n".join(log.entries(LOG.read_text())[-1].lines)
    assert "| speed >= 1.1 | 1.11x (0.78-1.44), full | not settled |" in text
    assert "| median_ms < 0.5 | 0.900 ms (0.77-1.03), full | missed |" in text


def test_expectation_that_was_not_measured_is_not_met() -> None:
    unseen = later(check(findings=(), counts={"graph_breaks": None}))
    unseen = replace(unseen, parts={"breaks": Part("skipped", "")})
    log.plan(LOG, "a", expect="findings=0,graph_breaks=0,speed>1,peak_bytes<9")
    wrong = bench_runs.row("full", 0.1, **bench_runs.WRONG)
    eager = bench_runs.row("eager", 1.0, vs_eager=1.0)
    runs = [unseen, later(bench_runs.bench([eager, wrong]))]
    log.retrospective(LOG, runs)
    back = log.entries(LOG.read_text())[-1]
    assert "\n".join(back.lines).count("| - | not measured | - |") == 4


def test_a_plan_is_found_by_id_by_words_or_as_the_last(run_log: RunLog) -> None:
    first = log.plan(LOG, "compile the decoder")
    second = log.plan(LOG, "compile the encoder")
    assert first.id != second.id
    assert run_log("retrospective", "decoder")[0] == 0
    assert run_log("retrospective")[0] == 0
    plans = [e.named("Plan") for e in log.entries(LOG.read_text())[2:]]
    assert plans == [first.id, second.id]
    code, _, err = run_log("retrospective", "compile")
    assert code == 2 and f"{first.id}, {second.id}" in err
    code, _, err = run_log("retrospective", "decoder")
    assert code == 2 and first.id in err and "--again" in err
    assert re.search(r"experiment-log\.md, line \d+", err)
    assert run_log("retrospective", "decoder", "--again")[0] == 0
    code, _, err = run_log("retrospective", "nothing like it")
    assert code == 2 and "torchproof log --list" in err


def test_the_verb_prints_and_lists(run_log: RunLog) -> None:
    code, out, _ = run_log()
    assert code == 0 and "experiment-log.md" in out and not LOG.exists()
    code, out, _ = run_log("plan", "first line\nsecond line")
    id = out.split()[-1]
    assert (code, out) == (0, f"experiment-log.md:7: Plan {id}\n")
    assert run_log()[:2] == (0, LOG.read_text())
    code, out, _ = run_log("--list")
    assert out == f"{id}  {datetime.now():%Y-%m-%d}  Plan: first line\n"
    assert "second line" in LOG.read_text()
