"""A run of `fix` in every format, in the log, in a comparison, and after a check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import check_runs
import pytest
from check_runs import ITEM, SIZE
from fix_runs import edit, run_of, setting
from report_readers import sarif_run as sarif_of

from torchproof.api import compare
from torchproof.cli import main
from torchproof.records import (
    Finding,
    Fix,
    Mark,
    Part,
    Receipt,
    Run,
    Setting,
    store,
)
from torchproof.report import fix_words, render

BEFORE = "def step(x):\n    y = x.item()\n    return y\n"
AFTER = "def step(x):\n    y = x  # <b>`::error::\n    return y\n"
SCALARS = Setting("dynamo.capture_scalar_outputs", True)
UNSAFE = Fix(
    "skip the check while compiling",
    "unsafe",
    "rejected",
    ("GB102",),
    findings=(SIZE.identity,),
    why="it is unsafe: --unsafe allows it",
    refused="tier",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.py"
    file.write_text(BEFORE)
    fix = edit(file, AFTER, findings=(ITEM.identity,))
    marks = [Mark("x", 0, "maybe_mark_dynamic")]
    others = setting(SCALARS, marks=marks, title="set two things")
    left = {SIZE: "graphs rise from 1 to 2"}
    return run_of(fix, others, UNSAFE, remaining=left, findings=(ITEM, SIZE))


def test_control_characters_of_source_are_escaped(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text("x = 1\r\ny = 2\r\n", newline="")
    odd = run_of(edit(file, "x = '\x1b[2J'\r\ny = 2\r\n"))
    text = render(odd, "text")
    assert "+x = '\\x1b[2J'\n y = 2\n" in text and "\x1b" not in text


def test_fixes_of_libraries_hint_at_a_patch(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "lib" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(BEFORE)
    run = run_of(edit(file, AFTER))
    steps = dict(fix_words.next_steps(run))
    assert list(steps.values()) == ["torchproof fix 20261116-1700-model --patch DIR"]
    assert "lib/model.py:2  GB101 safe" in render(run, "text")
    assert not dict(fix_words.next_steps(replace(run, ending="interrupted")))


def test_no_step_is_offered_that_would_change_nothing(run: Run) -> None:
    assert run.fixing is not None
    assert [purpose for purpose, _ in fix_words.next_steps(run)] == [
        "Apply them",
        "Unsafe ones too (1 more)",
    ]
    cured = replace(run, fixing=replace(run.fixing, remaining=()))
    assert [purpose for purpose, _ in fix_words.next_steps(cured)] == ["Apply them"]
    changed = replace(cured, error="model.py has changed since it was read")
    assert not [*fix_words.next_steps(changed)]


@pytest.mark.parametrize(
    "command",
    [
        "torchproof fix model.py:make --train",
        "torchproof fix 20261116-1700-model --write",
    ],
)
def test_the_next_command_runs_the_target_as_before(run: Run, command: str) -> None:
    trained = replace(run, command=command, options={**run.options, "train": True})
    commands = [each for _, each in fix_words.next_steps(trained)]
    assert commands[-1] == "torchproof fix model.py:make --train --unsafe"


def test_sarif_has_the_verified_edits(run: Run) -> None:
    first, second = sarif_of(run)["results"]
    [fix] = first["fixes"]
    assert "fixes" not in second
    [change] = fix["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "model.py"
    [replacement] = change["replacements"]
    assert replacement["deletedRegion"] == {
        "startLine": 2,
        "startColumn": 1,
        "endLine": 3,
        "endColumn": 1,
    }
    assert replacement["insertedContent"]["text"] == AFTER.splitlines(True)[1]


def test_sarif_leaves_out_what_does_not_fit_the_file(run: Run) -> None:
    fix = run.fixes[0]
    for other in (
        replace(fix, status="applied"),
        replace(fix, replacements=(replace(fix.replacements[0], at=None),)),
    ):
        results = sarif_of(replace(run, fixes=(other,)))["results"]
        assert results and all("fixes" not in result for result in results)


def test_saved_runs_are_shown_logged_and_compared(run: Run) -> None:
    store.save(run)
    store.save(check_runs.check(ITEM, SIZE, id="before"))
    for words in (
        ["show", run.id],
        ["log", "add", run.id],
        ["compare", "before", run.id],
    ):
        assert main(words) == 0


def test_a_comparison_is_with_all_fixes(run: Run) -> None:
    same = {"parts": {"breaks": Part("found")}, "counts": run.counts}
    found = compare(check_runs.check(ITEM, SIZE, **same), run)
    assert len(found.gone) == 1 and not found.appeared
    assert found.verdict == "better"


@pytest.mark.parametrize("target", ["model.py:make", "workload:gpt", "train.py"])
def test_a_check_says_what_may_be_fixable(target: str) -> None:
    run = check_runs.check(ITEM, target=target, command=f"torchproof check {target}")
    text = render(run, "text")
    assert text.rstrip().endswith(f"may be fixable: torchproof fix {target}")


@pytest.mark.parametrize(
    ("finding", "settings"),
    [
        *((ITEM, {"target": target}) for target in ("trace:folder", "src")),
        (ITEM, {"options": {"effort": "static"}}),
        (replace(ITEM, status="intentional"), {}),
        (replace(ITEM, kind="hazard", suspects="graph_break"), {}),
        (replace(ITEM, code="ZZ999"), {}),
    ],
)
def test_a_check_that_fix_cannot_help_does_not_name_it(
    finding: Finding, settings: dict[str, Any]
) -> None:
    assert "fixable" not in render(check_runs.check(finding, **settings), "text")


@pytest.mark.parametrize(
    ("low", "high", "is_claimed"),
    [(0.95, 1.07, False), (1.40, 1.60, True), (None, None, False)],
)
def test_a_speed_is_claimed_only_if_it_is_significant(
    low: float | None, high: float | None, is_claimed: bool
) -> None:
    counts = {"breaks": (1, 0), "recompiles": (0, 0), "graphs": (2, 1)}
    compared = {"compared": 3, "unseen_inputs": 4, "exceptions": 0}
    receipt = Receipt(
        **counts,
        **compared,
        outputs="same",
        max_rel_error=0.0,
        backend="inductor",
        speed=1.5,
        speed_low=low,
        speed_high=high,
    )
    assert ("1.50x" in receipt.text) is is_claimed


def test_an_older_record_says_in_words_that_a_fix_needs_unsafe() -> None:
    plain = UNSAFE.to_json()
    del plain["refused"]
    assert Fix.from_json(plain) == UNSAFE
    assert Fix.from_json({**plain, "why": "slower"}).refused is None
