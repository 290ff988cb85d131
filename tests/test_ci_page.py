"""docs/ci.md: its job is one that GitHub can read, and runs what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchproof.checking.budget import LIMITS, SWITCHES
from torchproof.cli import verbs

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ci.md"


def blocks(language: str) -> list[str]:
    fence = rf"^```{language}\n(.*?)^```$"
    return re.findall(fence, PAGE.read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    (text,) = blocks("yaml")
    workflow = yaml.safe_load(text)
    assert workflow[True] == ["push", "pull_request"]  # YAML 1.1 reads `on` as True
    assert workflow["permissions"]["security-events"] == "write"
    (job,) = workflow["jobs"].values()
    return dict(job)


def test_every_step_runs_or_uses_something(job: dict[str, Any]) -> None:
    for step in job["steps"]:
        assert len({"run", "uses"} & set(step)) == 1, step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"])


def test_the_job_runs_commands_that_the_page_shows(job: dict[str, Any]) -> None:
    """And those are executed by the test of all documents."""
    shown = {line for text in blocks("bash") for line in text.splitlines()}
    lines = [step["run"] for step in job["steps"] if "run" in step]
    mine = [ln for ln in lines if ln.startswith(("torchproof", "pytest"))]
    assert len(mine) == 4 and set(mine) <= shown
    for line in (line for line in mine if line.startswith("torchproof")):
        assert verbs._parser().parse_args(shlex.split(line)[1:])


def test_what_a_step_reads_another_wrote(job: dict[str, Any]) -> None:
    written: set[str] = {".torchproof/runs"}
    for step in job["steps"]:
        words = shlex.split(step.get("run", ""))
        read = step.get("with", {}).get("sarif_file") or step.get("with", {}).get(
            "path"
        )
        read = words[1] if words[:1] == ["cat"] else read
        assert read is None or read in written, step
        if "-o" in words:
            written.add(words[words.index("-o") + 1])
    assert {"findings.sarif", "report.md"} < written


def test_what_comes_after_the_gate_runs_when_it_fails(job: dict[str, Any]) -> None:
    steps = job["steps"]
    gate = next(n for n, step in enumerate(steps) if " check " in step.get("run", ""))
    after = steps[gate + 1 :]
    assert after and all(step.get("if") == "always()" for step in after)


def test_every_limit_of_a_budget_is_named() -> None:
    text = PAGE.read_text()
    named = (*LIMITS, *SWITCHES)
    assert [name for name in named if not re.search(rf"`{name}\b", text)] == []
