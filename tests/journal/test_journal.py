"""Entries of the log: what a run, a plan and a look back say, from data alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import bench_runs
import pytest

from torchproof.cli import main
from torchproof.records import store
from torchproof.records.run import Finding, Measurement, Part, Run, UserError
from torchproof.report import log
from torchproof.report.log import expectations

LOG = Path("experiment-log.md")
HIGH = Finding(
    "GB101",
    "graph_break",
    "high",
    "`y.item()` splits the graph of f<T>, in every call",
    "a value",
    "leave it",
    file="model.py",
    line=8,
    cost_us=33.25,
)


def check(**more: Any) -> Run:
    counts = {"calls": 3, "compiled_calls": 3, "graphs": 2, "graph_breaks": 1}
    plain: dict[str, Any] = {
        "id": "20260102-0304-model",
        "target": "model.py:make",
        "strategy": "full",
        "environment": {**bench_runs.ENVIRONMENT, "variables": {"OMP_NUM_THREADS": 2}},
        "counts": {**counts, "recompiles": 0, "cudagraph_skips": None},
        "findings": (HIGH,),
        "started": "2026-01-02T03:04:05",
        "command": "torchproof check model.py:make",
    }
    return Run(**{**plain, **more})


def later(run: Run, **more: Any) -> Run:
    """The run as if it had been started after every plan of these tests."""
    return replace(run, started="2999-01-01T00:00:00", **more)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["log", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# -- an observation --------------------------------------------------------------------


def test_an_observation_says_what_the_run_says() -> None:
    added = log.add(LOG, check())
    text = LOG.read_text()
    today = f"{datetime.now():%Y-%m-%d}"
    title = "check of model.py:make, 1 open finding (1 high)"
    assert f"## {today} - Observation: {title}\n" in text
    assert text.splitlines()[added.line - 1].startswith(f"## {today} - Observation")
    for line in (
        f"- Entry: `{added.id}`",
        "- Type: Observation",
        "- Run: `20260102-0304-model`, started 2026-01-02T03:04:05",
        "**General description:** Compiled on cpu, `model.py:make` has 1 open finding"
        " (1 high).",
        "- high, GB101 at `model.py:8`: `y.item()` splits the graph of f\\<T>, in every"
        " call, 33.2 us a call",
        "| graph breaks | 1 |",
        "| open findings, high | 1 |",
        "- command: `torchproof check model.py:make`",
        "- environment: torch 2.13.0+cpu, cpu, python 3.11.7, machine x86_64, cores 2,"
        " threads 2",
        "- variables: `OMP_NUM_THREADS=2`",
    ):
        assert line in text.splitlines()
    # What was not measured is not there.
    assert "cudagraph" not in text and "Median" not in text and "eager" not in text


def test_what_is_resolved_and_what_was_before_stand_beside_it() -> None:
    eager = bench_runs.row("eager", 2.0).to_json()
    baseline = {
        "id": "20260101-0000-model",
        "counts": {"graph_breaks": 4, "recompiles": 0},
        "findings": {"high": 2, "medium": 0, "low": 0},
        "measurements": [eager],
    }
    gone = replace(HIGH, status="resolved", line=9)
    run = check(findings=(HIGH, gone), baseline=baseline)
    run = replace(run, measurements=(bench_runs.row("eager", 1.0),))
    log.add(LOG, run)
    lines = LOG.read_text().splitlines()
    assert "| Figure | Value | Before (20260101-0000-model) |" in lines
    assert "| graph breaks | 1 | 4 |" in lines
    assert "| open findings, high | 1 | 2 |" in lines
    assert "| calls | 3 | - |" in lines
    assert any(line.startswith("| eager, before | 2.00 ms |") for line in lines)
    resolved = "- resolved since `20260101-0000-model`: GB101 at `model.py:9`"
    assert any(line.startswith(resolved) for line in lines)
    told = "has 1 open finding (1 high), 1 resolved since the run before."
    assert any(line.endswith(told) for line in lines)
    title = "check of model.py:make, 1 open finding (1 high), 1 resolved"
    assert any(line.startswith("## ") and line.endswith(title) for line in lines)


def test_a_bench_is_told_with_interval_verdict_and_decision() -> None:
    rows = [bench_runs.row("eager", 1.0), bench_runs.row("full", 0.5)]
    wrong = bench_runs.row("regional", 0.2, **bench_runs.WRONG)
    log.add(LOG, bench_runs.bench([*rows, wrong]))
    text = LOG.read_text()
    assert "Compiling `model.py:make` pays on cpu: full is 2.00x faster" in text
    assert "| full | 0.500 ms | 0.495-0.505 | 2.00x (1.96-2.04) | 12.0 s |" in text
    assert "- regional gives wrong outputs: call 0 differs" in text
    assert "Observation: bench of model.py:make, keep compiled" in text


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (check(findings=()), "Compiled on cpu, `model.py:make` has no open finding."),
        (
            check(ending="timeout"),
            "The check of `model.py:make` is not complete: it was ended early"
            " (timeout).",
        ),
        (
            check(environment={}, counts={}, findings=()),
            "The source of `model.py:make` was read, not run: no open finding.",
        ),
        (
            check(measurements=(bench_runs.row("full", 0.5),), findings=()),
            "Compiled on cpu, `model.py:make` has no open finding, and is 2.00x faster"
            " than in eager.",
        ),
        (
            bench_runs.bench([bench_runs.row("eager", 1.0)]),
            "Compiling `model.py:make` may or may not pay on cpu: only eager was"
            " measured.",
        ),
    ],
)
def test_one_sentence_tells_people_outside(run: Run, sentence: str) -> None:
    log.add(LOG, run)
    assert f"**General description:** {sentence}" in LOG.read_text().splitlines()


def test_many_findings_are_cut_and_the_rest_is_counted() -> None:
    many = tuple(replace(HIGH, line=number) for number in range(1, 41))
    log.add(LOG, check(findings=many))
    text = LOG.read_text()
    assert text.count("- high, GB101") == 12
    assert "- open, 28 more: torchproof show 20260102-0304-model" in text


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


def test_a_run_is_added_once_unless_asked_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = store.save(check())
    assert said("add", capsys=capsys)[0] == 0
    before = LOG.read_bytes()
    code, _, err = said("add", saved.id, capsys=capsys)
    assert code == 2 and f"{saved.id} is in experiment-log.md, line 7" in err
    assert LOG.read_bytes() == before
    assert said("add", saved.id, "--again", capsys=capsys)[0] == 0
    assert LOG.read_bytes().startswith(before)
    ids = [entry.id for entry in log.entries(LOG.read_text())]
    assert len(set(ids)) == 2
    # The same name in another folder is another run.
    log.add(LOG, replace(saved, started="2026-05-05T05:05:05"))


# -- plans and looking back ------------------------------------------------------------


def test_expectations_are_lines_that_can_be_read_again() -> None:
    log.plan(LOG, "try it", expect="speed>=1.2, graph_breaks=0,findings.high == 0")
    (plan,) = log.entries(LOG.read_text())
    assert [line for line in plan.section("Expected") if line] == [
        "- speed >= 1.2 (times as fast as eager, best strategy)",
        "- graph_breaks = 0",
        "- findings.high = 0",
    ]
    read = expectations.read(plan.section("expected"))
    assert [(e.metric, e.sign, e.bound) for e in read] == [
        ("speed", ">=", 1.2),
        ("graph_breaks", "=", 0),
        ("findings.high", "=", 0),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("speed", "'speed' is not METRIC, sign and number"),
        ("speed>=", "is not METRIC"),
        ("speed>=fast", "is not METRIC"),
        ("brakes=0", "no metric 'brakes': graph_breaks, "),
        ("median_ms=3", "median_ms is measured, and never exactly 3"),
    ],
)
def test_an_expectation_that_cannot_be_judged_is_refused(text: str, why: str) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        log.plan(LOG, "try it", expect=text)
    assert not LOG.exists()


def test_a_retrospective_sets_the_expected_beside_the_measured() -> None:
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
    assert "3 met, 1 missed, 2 not measured; 3 runs followed it." in text
    assert "`c` is not complete" in text and "other.py" not in text
    assert "What we learned: (write here)" in text


def test_a_run_of_another_machine_counts_once_it_is_in_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.plan(LOG, "a", expect="graph_breaks=1")
    Path("gpu.json").write_text(json.dumps(later(check(id="gpu")).to_json()))
    Path("broken.json").write_text("{")
    assert said("add", "gpu.json", capsys=capsys)[0] == 0
    log.add(LOG, check(id="broken"), came_from="broken.json")
    log.add(LOG, check(id="lost"), came_from="nowhere.json")
    assert said("retrospective", capsys=capsys)[0] == 0
    told = "\n".join(log.entries(LOG.read_text())[-1].lines)
    assert "| graph_breaks = 1 | 1 | met | `gpu` |" in told
    assert "1 run followed it" in told


def test_an_interval_on_both_sides_of_the_bound_settles_nothing() -> None:
    log.plan(LOG, "a", expect="speed>=1.1,median_ms<0.5")
    row = bench_runs.row("full", 0.9, noise=0.3)
    log.retrospective(LOG, [later(check(), measurements=(row,))])
    told = "\n".join(log.entries(LOG.read_text())[-1].lines)
    assert "| speed >= 1.1 | 1.11x (0.78-1.44), full | not settled |" in told
    assert "| median_ms < 0.5 | 0.900 ms (0.77-1.03), full | missed |" in told


def test_what_was_not_looked_at_is_not_met() -> None:
    unseen = later(check(findings=(), counts={"graph_breaks": None}))
    unseen = replace(unseen, parts={"breaks": Part("skipped", "")})
    log.plan(LOG, "a", expect="findings=0,graph_breaks=0,speed>1,peak_bytes<9")
    wrong = bench_runs.row("full", 0.1, **bench_runs.WRONG)
    eager = bench_runs.row("eager", 1.0, vs_eager=1.0)
    runs = [unseen, later(bench_runs.bench([eager, wrong]))]
    log.retrospective(LOG, runs)
    back = log.entries(LOG.read_text())[-1]
    assert "\n".join(back.lines).count("| - | not measured | - |") == 4


def test_a_plan_is_found_by_id_by_words_or_as_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = said("retrospective", capsys=capsys)
    assert code == 2 and "no plan in experiment-log.md" in err and not LOG.exists()
    first = log.plan(LOG, "compile the decoder")
    second = log.plan(LOG, "compile the encoder")
    assert first.id != second.id
    assert said("retrospective", "decoder", capsys=capsys)[0] == 0
    assert said("retrospective", capsys=capsys)[0] == 0
    plans = [e.named("Plan") for e in log.entries(LOG.read_text())[2:]]
    assert plans == [first.id, second.id]
    code, _, err = said("retrospective", "compile", capsys=capsys)
    assert code == 2 and f"fits 2 of them ({first.id}, {second.id})" in err
    code, _, err = said("retrospective", "decoder", capsys=capsys)
    assert code == 2 and "has a retrospective in experiment-log.md, line" in err
    assert said("retrospective", "decoder", "--again", capsys=capsys)[0] == 0
    code, _, err = said("retrospective", "nothing like it", capsys=capsys)
    assert code == 2 and "torchproof log --list names them" in err


def test_the_verb_prints_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys=capsys)
    assert code == 0 and "There is no experiment-log.md here" in out
    code, out, _ = said("plan", "first line\nsecond line", capsys=capsys)
    id = out.split()[-1]
    assert (code, out) == (0, f"experiment-log.md:7: Plan {id}\n")
    assert said(capsys=capsys)[:2] == (0, LOG.read_text())
    code, out, _ = said("--list", capsys=capsys)
    assert out == f"{id}  {datetime.now():%Y-%m-%d}  Plan: first line\n"
    assert "second line" in LOG.read_text()
    for line, why in {
        "add --expect speed>1": "torchproof log add takes no --expect",
        "--again": "torchproof log takes no --again",
        "plan": "log plan needs a text",
        "add nothing": "no run 'nothing'",
        "plan x --file model.py": "model.py is no Markdown file",
        "plan x --file no/where.md": "cannot write no/where.md",
        "--file .": "it is a directory",
    }.items():
        code, _, err = said(*line.split(), capsys=capsys)
        assert code == 2 and why in err and len(err.splitlines()) == 1, line


def test_metrics_of_plans_are_fields_of_runs() -> None:
    fields = {*check().counts, *Measurement("full").to_json(), "skipped_frames"}
    fields |= {"cudagraph_recordings"}
    own = {"speed", "memory_mib"} | {m for m in expectations.METRICS if "find" in m}
    assert set(expectations.METRICS) - own <= fields
