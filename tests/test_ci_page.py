"""docs/ci.md: what GitHub, GitLab and pre-commit read, and it runs what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchproof import __version__
from torchproof.checking.budget import LIMITS, SWITCHES
from torchproof.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ci.md"


def blocks(language: str) -> list[str]:
    fence = rf"^```{language}\n(.*?)^```$"
    return re.findall(fence, PAGE.read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    return job_of(documents()[1])


def documents() -> list[dict[Any, Any]]:
    """The action in a workflow, a workflow of single steps, GitLab, and pre-commit."""
    return [yaml.safe_load(text) for text in blocks("yaml")]


def job_of(workflow: dict[Any, Any]) -> dict[str, Any]:
    assert workflow[True] == ["push", "pull_request"]  # YAML 1.1 reads `on` as True
    assert workflow["permissions"]["security-events"] == "write"
    (job,) = workflow["jobs"].values()
    return dict(job)


def test_workflow_gives_the_action_its_inputs() -> None:
    workflow = documents()[0]
    assert workflow["permissions"]["pull-requests"] == "write"
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    step = job_of(workflow)["steps"][-1]
    required = {name for name, given in inputs.items() if given.get("required")}
    assert step["uses"].startswith("OWNER/torchproof@v")
    assert required <= set(step["with"]) <= set(inputs)


def test_page_describes_every_input_and_output_of_the_action() -> None:
    action, text = yaml.safe_load((ROOT / "action.yml").read_text()), PAGE.read_text()
    for name, given in action["inputs"].items():
        default = given.get("default", "required")
        shown = default if given.get("required") else default and f"`{default}`"
        assert re.search(rf"^\| `{name}` \| {shown}", text, re.M), name
    for name in action["outputs"]:
        assert re.search(rf"^\|[^|]*`{name}`", text, re.M), name


def test_gitlab_job_keeps_the_report_that_its_command_writes() -> None:
    (job,) = documents()[2].values()
    line = job["script"][-1]
    assert line in {each for text in blocks("bash") for each in text.splitlines()}
    assert line.endswith(f" -o {job['artifacts']['reports']['codequality']}")
    assert job["artifacts"]["when"] == "always"  # findings fail the job


def hook() -> dict[str, Any]:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return dict(hook)


def test_page_uses_the_hook_of_the_repository() -> None:
    (repo,) = documents()[3]["repos"]
    (shown,) = repo["hooks"]
    assert shown["id"] == hook()["id"]
    assert repo["rev"] == f"v{__version__}"
    assert {"id", "name", "entry", "language"} <= set(hook())
    assert hook()["entry"].removesuffix(" -q") in PAGE.read_text()


@pytest.mark.parametrize(("test", "code"), [("y.sum() > 0", 1), ("self.training", 0)])
def test_hook_fails_for_a_break(
    test: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, y):\n"
        f"        if {test}:\n            y = y + 1\n        return y\n"
    )
    words = shlex.split(hook()["entry"])[1:] + hook()["args"]
    assert main(words) == code


def test_job_runs_commands_that_the_page_shows(job: dict[str, Any]) -> None:
    """And those are executed by the test of all documents."""
    shown = {line for text in blocks("bash") for line in text.splitlines()}
    lines = [step["run"] for step in job["steps"] if "run" in step]
    ours = {ln for ln in lines if ln.startswith(("torchproof", "pytest"))}
    assert ours and ours <= shown
    gate = next(n for n, s in enumerate(job["steps"]) if " check " in s.get("run", ""))
    assert {step.get("if") for step in job["steps"][gate + 1 :]} == {"always()"}


def test_file_that_a_step_reads_was_written(job: dict[str, Any]) -> None:
    written: set[str] = {".torchproof/runs"}
    for step in job["steps"]:
        words, given = shlex.split(step.get("run", "")), step.get("with", {})
        read = given.get("sarif_file") or given.get("path")
        read = words[1] if words[:1] == ["cat"] else read
        assert read is None or read in written, step
        if "-o" in words:
            written.add(words[words.index("-o") + 1])


def test_page_names_every_limit_of_a_budget() -> None:
    text = PAGE.read_text()
    named = (*LIMITS, *SWITCHES)
    assert [name for name in named if not re.search(rf"`{name}\b", text)] == []
