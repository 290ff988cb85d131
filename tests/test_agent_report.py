"""`--format agent`: what a coding agent reads, and whether it can act on it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import bench_runs
import check_runs
import load_runs
import pytest
import tune_runs
from check_runs import FULL, ITEM, NOWHERE, READ, SIZE, check
from facts import missing
from hypothesis import HealthCheck, given, settings

from torchproof.api import compare
from torchproof.cli import verbs
from torchproof.records import CauseTree, Finding, Part, Run
from torchproof.report import render, render_comparison


def blocks(run: Run) -> list[list[str]]:
    """The head, one block for each cause, and the end."""
    return [each.splitlines() for each in render(run, "agent").split("\n\n")]


def labelled(lines: list[str], label: str) -> list[str]:
    start = f"{label}: "
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def test_a_finding_has_place_texts_source_cost_and_verification() -> None:
    _, first, second, _ = blocks(check(ITEM, SIZE))
    assert first == [
        "1. GB101 high graph_break model.py:42:16 in Net.forward",
        f"what: {ITEM.message}",
        f"why: {ITEM.cause}",
        f"fix: {ITEM.fix}",
        "source:",
        " 41| for block in self.blocks:",
        ">42|     if loss.item() > limit:",
        " 43|         break",
        "cost: 180 us/call",
        "verify: torchproof check model.py:make --train --effort quick --select GB101"
        " --fail-on low -q --format agent",
    ]
    assert second[0] == "2. RC201 medium recompile model.py:18 in Net.forward"
    assert not labelled(second, "cost")  # it was not measured


def test_every_command_is_one_that_the_program_takes() -> None:
    text = render(FULL, "agent")
    commands = re.findall(r"^[^:]+: (torchproof .+)$", text, re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        _, *words = shlex.split(command)
        options = verbs._parser(words[0]).parse_args(words)
        if words[0] == "check" and "--select" in words:
            assert options.format == "agent" and options.fail_on == "low"


def test_effects_are_below_their_cause_and_not_verified_apart() -> None:
    effect = replace(SIZE, cause_of=(ITEM.identity,), certainty="likely")
    head, first, end = blocks(check(replace(ITEM, severity="low"), effect))
    assert "to fix: 1 cause, 1 effect" in head
    # As severe as the worst that goes away with it.
    assert first[0].startswith("1. GB101 medium ")
    below = first.index("effects: 12 recompiles in 1 function (likely)") + 1
    assert first[below].startswith("- RC201 model.py:18 size 1 of `tokens` changed")
    assert len(labelled(first, "verify")) == 1 and not labelled(end, "verify")


def test_many_effects_are_counted() -> None:
    effects = [
        replace(SIZE, function=f"f{n}", cause_of=(ITEM.identity,)) for n in range(12)
    ]
    _, first, _ = blocks(check(ITEM, *effects))
    assert len([line for line in first if line.startswith("- RC201")]) == 8
    assert "- 4 more" in first


def test_a_text_is_said_once() -> None:
    again = replace(ITEM, function="Net.backward", cost_us=None)
    _, _, second, _ = blocks(check(ITEM, again))
    assert labelled(second, "fix") == labelled(second, "source") == ["as in 1"]


def test_evidence_is_short_and_new() -> None:
    said = (
        *ITEM.evidence,  # a link
        "0/1: len(images) == 4 # if images: # model.py:76 in forward",
        f"torch: {'x' * 500}",
    )
    found = replace(ITEM, evidence=said, cause="the guard: len(images) == 4")
    _, first, _ = blocks(check(found))
    assert labelled(first, "evidence") == [f"torch: {'x' * 193}..."]


def test_what_is_not_a_cure_depends_on_what_was_found() -> None:
    *_, end = blocks(check(SIZE))
    [said] = labelled(end, "no cure")
    assert "recompile_limit" in said and "disable" not in said
    assert not any("installed package" in text for text in end)
    *_, end = blocks(check(replace(SIZE, owner="library")))
    assert any("--patch DIR" in text for text in labelled(end, "do not"))


def test_a_clean_run_asks_for_nothing() -> None:
    text = render(check(), "agent")
    assert "to fix: nothing found in the parts that ran" in text
    for label in ("verify", "no cure", "do not", "edits to try", "what"):
        assert f"\n{label}" not in text


def test_what_was_not_observed_or_not_checked_is_said() -> None:
    parts = {"breaks": Part("failed", "the child crashed"), "batch": Part("skipped")}
    text = render(check(READ, NOWHERE, parts=parts, error="it crashed"), "agent")
    facts = ("(read in the source, not observed)", "incomplete: it crashed")
    assert missing(text, *facts, "part breaks failed: the child crashed") == []
    assert "1 cause, 1 suspected" in text and " no_op -\n" in text


def test_it_is_the_same_each_time_and_shorter_than_other_documents() -> None:
    text = render(FULL, "agent", colour=True)
    assert text == render(FULL, "agent") and "\x1b" not in text
    for other in ("md", "json", "html", "sarif"):
        assert len(text) < len(render(FULL, other)), other


def test_a_bench_is_its_decision_code_and_times() -> None:
    rows = [bench_runs.row("eager", 1.0), bench_runs.row("full", 0.5)]
    text = render(bench_runs.bench(rows), "agent")
    assert missing(text, "decision: keep compiled", "\ncode:\nmodel = ") == []
    assert "full | 0.500 ms | " in text and "--baseline" in text


@pytest.mark.parametrize("run", [tune_runs.tune(), load_runs.run()], ids="tl")
def test_other_verbs_have_their_answer(run: Run) -> None:
    label = "decision" if run.verb == "tune" else "answer"
    assert f"\n{label}: " in render(run, "agent")


def test_a_comparison_has_a_verdict_for_each_metric() -> None:
    before = bench_runs.bench([bench_runs.row("full", 0.5)], id="before")
    after = bench_runs.bench([bench_runs.row("full", 0.6)], id="after")
    text = render_comparison(compare(before, after), "agent")
    assert text.startswith("torchproof compare: A before, B after\n")
    assert "full speed: 0.500 ms -> 0.600 ms, 1.20x slower" in text
    assert text.count("REGRESSION") == text.count("REGRESSION\n") >= 1
    same = render_comparison(compare(before, before), "agent")
    assert "REGRESSION" not in same and "No significant difference" in same


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(check_runs.runs())
def test_any_check_has_one_verification_for_each_cause(run: Run) -> None:
    text = render(run, "agent")
    text.encode()
    assert text == render(run, "agent")
    causes: list[Finding] = CauseTree(run.findings).causes
    heads = re.findall(r"^(\d+)\. [A-Z]+\d+ ", text, re.MULTILINE)
    assert heads == [str(number) for number in range(1, len(causes) + 1)]
    assert len(re.findall(r"^verify: ", text, re.MULTILINE)) == len(causes)


@pytest.mark.parametrize("files", ["--trace t.json -o run.json", "--trace=t.json"])
def test_the_command_to_check_again_overwrites_no_file(files: str) -> None:
    command = f"torchproof check train.py {files} --train -- -o out"
    run = replace(check(ITEM), command=command)
    [again] = labelled(render(run, "agent").splitlines(), "check again")
    assert again == "torchproof check train.py --train -- -o out"


@pytest.mark.parametrize("command", ["", "torchproof check 'train.py"])
def test_a_command_that_cannot_be_read_is_not_repeated(command: str) -> None:
    text = render(replace(check(ITEM), command=command), "agent")
    assert not labelled(text.splitlines(), "check again")
