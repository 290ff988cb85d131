"""The survey of models: what its rows count, and the commands on its page.

The cells of the page are those of the stored rows: test_docs.py makes them again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs")]

import survey_parts  # noqa: E402

from benchmarks import zoo  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "zoo.md"
NAME = "transformers_patchtst"


def row(*findings: dict[str, object], fix: object = None) -> dict[str, object]:
    counts = {"graph_breaks": 0, "skipped_frames": 0, "recompiles": 0}
    check = {"error": None, "counts": counts, "findings": list(findings)}
    return {"name": NAME, "check": check, "fix": fix}


def finding(kind: str, severity: str) -> dict[str, object]:
    return {"kind": kind, "severity": severity, "status": "open", "code": kind}


def fixed(*left: str, uncovered: int = 0) -> dict[str, object]:
    breaks = {"before": 1, "uncovered": uncovered, "after": 1}
    none = {"before": 0, "uncovered": 0, "after": 0}
    kinds = [{"kind": kind} for kind in left]
    return {"error": None, "breaks": breaks, "recompiles": none, "left": kinds}


def test_every_row_of_the_page_names_a_factory() -> None:
    named = re.findall(rf"torchproof check {zoo.TARGET}:(\w+)", PAGE.read_text())
    assert set(named) == set(zoo.FACTORIES) == set(zoo.SURVEY.read()["rows"])
    assert min(len(names) for names in zoo.LIBRARIES.values()) >= 8


def test_a_place_is_a_file_and_a_line_unless_a_library_generates_the_code() -> None:
    for file, shown in {
        "torch_geometric/utils/loop.py": "`loop.py:3`",
        "torch_geometric.nn.gin_a1.py": "code that torch_geometric generates",
    }.items():
        assert survey_parts.place({"file": file, "line": 3}) == shown


def test_fix_runs_where_it_may_remove_something() -> None:
    assert zoo.is_to_fix(row(finding("graph_break", "high")))
    assert zoo.is_to_fix(row(finding("recompile", "medium")))
    assert not zoo.is_to_fix(row(finding("recompile", "low")))
    assert not zoo.is_to_fix(row(finding("slowdown", "medium")))
    assert not zoo.is_to_fix(row(finding("graph_break", "high"), fix={}))


def test_breaks_of_fix_are_counted_as_those_of_the_check() -> None:
    found = [finding("graph_break", "high"), finding("compile_error", "high")]
    fixes = row(*found, fix=fixed("compile_error", "graph_break", uncovered=1))
    assert survey_parts.zoo_removed(fixes) == "1 of 3 breaks"
    assert survey_parts.removed_of([fixes]) == "1 of 3 in 1 model"
    for each in zoo.SURVEY.read()["rows"].values():
        if zoo.is_fixed(each):  # a run of its own, which found the same
            before = zoo.findings(each, "graph_break", "skipped_frame")
            assert each["fix"]["breaks"]["before"] == len(before)
            assert 0 <= zoo.breaks_left(each) <= zoo.breaks_found(each)


def open_finding(
    identity: str, kind: str = "graph_break", status: str = "open"
) -> zoo.Row:
    return {"identity": identity, "kind": kind, "status": status}


def test_what_an_edit_uncovers_counts_as_found_and_intended_breaks_do_not() -> None:
    first = {"codes": ["GB101"], "findings": ["a"]}
    second = {"codes": ["GB102"], "findings": ["b"]}
    recompile = {"codes": ["RC201"], "findings": ["r"]}
    before = [open_finding("a"), open_finding("r", "recompile")]
    uncovered = zoo.changes(before, [open_finding("b")], [first], "GB")
    assert uncovered == {"before": 1, "uncovered": 1, "after": 1}
    fixed = zoo.changes(before, [], [first, second, recompile], "GB")
    assert fixed == {"before": 1, "uncovered": 1, "after": 0}
    intended = [open_finding("a", status="intentional")]
    none = {"before": 0, "uncovered": 0, "after": 0}
    assert zoo.changes(intended, intended, [], "GB") == none


def test_too_few_removed_breaks_and_other_outputs_are_failures() -> None:
    found = [finding("graph_break", "high")] * 3
    good = row(*found, fix=fixed("graph_break") | {"outputs": "same"})
    bad = row(*found, fix=fixed(*["graph_break"] * 2) | {"outputs": "wrong"})
    assert not list(zoo.failures({"good": good}))
    assert len(list(zoo.failures({"bad": bad}))) == 2


@pytest.mark.slow
def test_a_row_of_the_survey_and_its_command(tmp_path: Path) -> None:
    path = tmp_path / "zoo.json"
    assert zoo.SURVEY.main([NAME, "-o", str(path)]) == 0
    found = json.loads(path.read_text())["rows"][NAME]["check"]
    assert found["counts"]["calls"] == 3 and found["findings"]
    words = found["command"].split()[1:]
    again = subprocess.run(
        [sys.executable, "-m", "torchproof", *words, "--format", "json", "-q"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert json.loads(again.stdout)["counts"] == found["counts"]


_RUN_TRANSFORMERS = """
import torch
from benchmarks import transformers_models, zoo_models
torch.manual_seed(0)
failed = []
zoo = set(" ".join(zoo_models.FAMILIES).split())
for name in sorted(zoo & set(transformers_models.OVERRIDES)):
    try:
        model, calls = zoo_models.transformers_model(name, False)
        for call in calls:
            model(**call)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
assert not failed, "\\n".join(failed)
"""


@pytest.mark.slow
def test_transformers_models_with_inputs_of_their_own_run_in_eager() -> None:
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "-c", _RUN_TRANSFORMERS],
        cwd=ROOT,
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
