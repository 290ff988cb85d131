"""action.yml: what GitHub requires of it, and its steps run by bash in a repository.

The repository has a remote, a target branch and the branch of a pull request; the
runner's variables and files are as GitHub's runner sets them. `gh` is a script here
that keeps comments in a file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import git

ROOT = Path(__file__).resolve().parent.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")  # as the runner calls it
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
CONTEXT = re.compile(r"\b(?:inputs|steps|github)(?:\.[\w-]+)+")

CLEAN = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.where(x.sum() > 0, x + 1, x)


def make():
    return Net(), [(torch.ones(2),)]
"""
BROKEN = CLEAN.replace(
    "        return torch.where(x.sum() > 0, x + 1, x)",
    "        if x.sum() > 0:\n            x = x + 1\n        return x",
)
GH = """\
#!{python}
import json, re, sys
from pathlib import Path
store, arguments = Path({store!r}), sys.argv[1:]
with store.with_suffix(".calls").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
comments = json.loads(store.read_text()) if store.exists() else []
if store.with_suffix(".refused").exists():
    sys.exit("HTTP 403: Resource not accessible by integration")
url = next(word for word in arguments if word.startswith("repos/"))
if "--method" not in arguments:
    marker = re.search(r'startswith\\("(.*?)"\\)', arguments[-1])[1]
    mine = [c for c in comments if c["bot"] and c["body"].startswith(marker)]
    print(*(c["id"] for c in mine), sep="\\n")
    sys.exit()
body = Path(arguments[-1].removeprefix("body=@")).read_text()
if arguments[arguments.index("--method") + 1] == "POST":
    comments.append({{"id": len(comments) + 1, "url": url, "bot": True, "body": body}})
else:
    number = int(url.rpartition("/")[2])
    comments[number - 1]["body"] = body
store.write_text(json.dumps(comments))
"""


# -- what GitHub requires --------------------------------------------------------------


def test_metadata_is_what_github_reads() -> None:
    known = {"name", "author", "description", "branding", "inputs", "outputs", "runs"}
    assert {"name", "description", "runs"} <= set(ACTION) <= known
    assert ACTION["runs"]["using"] == "composite"
    for given in ACTION["inputs"].values():
        assert {"description"} < set(given) <= {"description", "required", "default"}
    for step in STEPS:
        assert len({"run", "uses"} & set(step)) == 1, step
        assert "uses" in step or step["shell"] == "bash"
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"\binputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    for step, output in re.findall(r"steps\.(\w+)\.outputs\.(\w+)", text):
        (source,) = (s["run"] for s in STEPS if s.get("id") == step)
        assert f'"{output}=$' in source


def test_shells_get_inputs_in_variables_that_they_read() -> None:
    """Inputs in the text of a step would be executed."""
    for step in STEPS:
        assert "${{" not in step.get("run", ""), step["name"]
        for name in set(step.get("env", ())) - {"GH_TOKEN"}:  # which `gh` reads
            assert re.search(rf"\$\{{?{name}\b", step["run"]), name


# -- a runner --------------------------------------------------------------------------


@dataclass
class Job:
    """A job with a checkout, in which the steps run one after the other."""

    checkout: Path
    temp: Path
    inputs: dict[str, str]
    base: str = ""
    event: str = "pull_request"
    outputs: dict[str, str] = field(default_factory=dict)
    log: str = ""
    codes: dict[str, int] = field(default_factory=dict)

    def run(self, steps: Sequence[dict[str, Any]] = STEPS) -> Job:
        for step in steps:
            if "run" in step and self._is_due(step.get("if", "success()")):
                self._run(step)
        return self

    @property
    def failed(self) -> bool:
        return any(self.codes.values())

    def _values(self) -> Mapping[str, str]:
        defaults = {k: v.get("default", "") for k, v in ACTION["inputs"].items()}
        return {
            **{f"inputs.{k}": v for k, v in (defaults | self.inputs).items()},
            **{f"steps.check.outputs.{k}": v for k, v in self.outputs.items()},
            "github.event_name": self.event,
            "github.event.pull_request.number": "7",
            "github.token": "t0ken",
        }

    def _is_due(self, condition: str) -> bool:
        if "always()" not in condition and self.failed:
            return False
        values = self._values()
        plain = CONTEXT.sub(lambda m: repr(values.get(m[0], "")), condition)
        for word in ("always()", "success()"):
            plain = plain.replace(word, "True")
        return bool(eval(plain.replace("&&", "and"), {"__builtins__": {}}))

    def _run(self, step: dict[str, Any]) -> None:
        values = self._values()
        given = {
            name: EXPRESSION.sub(lambda m: values.get(m[1], ""), text)
            for name, text in step.get("env", {}).items()
        }
        script, outputs = self.temp / "step.sh", self.temp / "output"
        script.write_text(EXPRESSION.sub(lambda m: values.get(m[1], ""), step["run"]))
        outputs.write_text("")
        done = subprocess.run(
            [*BASH, script],
            cwd=self.checkout,
            env={**os.environ, **self._runner(outputs), **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        self.codes[step["name"]] = done.returncode
        self.log += done.stdout
        lines = outputs.read_text().splitlines()
        self.outputs |= dict(line.split("=", 1) for line in lines)

    def _runner(self, outputs: Path) -> dict[str, str]:
        search = [str(self.temp / "bin"), str(Path(sys.executable).parent)]
        return {
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_BASE_REF": self.base,
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_REPOSITORY": "someone/model",
            "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md"),
            "PATH": os.pathsep.join([*search, os.environ["PATH"]]),
            "RUNNER_TEMP": str(self.temp),
        }

    # What the job left.

    def summary(self) -> str:
        return (self.temp / "summary.md").read_text()

    def comments(self) -> list[dict[str, Any]]:
        file = self.temp / "comments.json"
        return json.loads(file.read_text()) if file.exists() else []


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Makes a job whose checkout is of a pull request, one commit deep."""

    def start(base: str, change: str, branch: str = "main", **inputs: str) -> Job:
        remote, temp = tmp_path / "remote", tmp_path / "temp"
        checkout = tmp_path / "checkout"
        git(tmp_path, "init", "-q", str(remote))
        for name, text in ((branch, base), ("pull", change)):
            git(remote, "symbolic-ref", "HEAD", f"refs/heads/{name}")
            (remote / "model.py").write_text(text)
            git(remote, "add", "model.py")
            git(remote, "commit", "-q", "-m", name)
        url = f"file://{remote}"
        git(tmp_path, "clone", "-q", "--depth=1", "-b", "pull", url, str(checkout))
        (temp / "bin").mkdir(parents=True)
        gh = GH.format(python=sys.executable, store=str(temp / "comments.json"))
        (temp / "bin" / "gh").write_text(gh)
        (temp / "bin" / "gh").chmod(0o755)
        plain = {"target": "model.py", "effort": "static", "install": "false"}
        return Job(checkout, temp, plain | inputs, base=branch)

    return start


@pytest.fixture(autouse=True)
def _needs_git() -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")


# -- what the steps do -----------------------------------------------------------------

HOSTILE = "$(touch${IFS}taken);`touch${IFS}taken`;'\"&touch${IFS}taken&|"


def taken(job: Job) -> list[Path]:
    """Files that a hostile text has made, if a shell ran it."""
    return [*job.checkout.rglob("taken"), *job.temp.rglob("taken")]


@pytest.mark.slow
def test_pull_request_that_adds_a_break_fails(start: Start) -> None:
    """Also from a branch whose name a shell would run."""
    job = start(CLEAN, BROKEN, branch=f"-x{HOSTILE}").run()
    assert not taken(job)
    assert job.outputs["status"] == "0", job.log  # medium, and fail-on is high
    assert job.outputs["worse"] == "1", job.log
    assert re.search(r"^::warning file=model\.py,line=7,", job.log, re.M)
    assert "::error::torchproof: this is worse than the target branch" in job.log
    assert job.codes["Decide"] == 1
    folder = Path(job.outputs["folder"])
    assert json.loads((folder / "findings.sarif").read_text())["runs"][0]["results"]
    assert "GB102" in (folder / "report.md").read_text()
    (comment,) = job.comments()
    assert comment["url"] == "repos/someone/model/issues/7/comments"
    assert "appeared: model.py:7 GB102" in comment["body"]
    assert "appeared: model.py:7 GB102" in job.summary()
    assert git(job.checkout, "status", "--porcelain", "-uno") == ""
    assert len(git(job.checkout, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    "inputs",
    [
        dict.fromkeys(("target", "effort", "fail-on", "arguments"), HOSTILE),
        {"target": "--list"},
        {"target": "absent.py"},
    ],
    ids=["hostile inputs", "a flag", "a missing target"],
)
def test_inputs_that_cannot_be_checked_fail(
    inputs: dict[str, str], start: Start
) -> None:
    job = start(CLEAN, BROKEN, baseline="false", **inputs).run()
    assert job.codes["Check"] == 2 and set(job.codes.values()) == {2}, job.log
    assert not taken(job)


@pytest.mark.slow
def test_comment_is_kept_current(start: Start) -> None:
    """Of a pull request that a later commit repairs; a token may not be able to."""
    job = start(BROKEN, BROKEN, **{"fail-on": "medium"}).run()
    assert (job.outputs["status"], job.outputs["worse"]) == ("1", "0")
    assert job.codes["Decide"] == 1  # whatever the target branch has
    (before,) = job.comments()
    (job.checkout / "model.py").write_text(CLEAN)
    (job.temp / "comments.refused").touch()
    job.codes.clear()
    assert not job.run().failed, job.log
    assert "::warning::torchproof could not comment" in job.log
    (job.temp / "comments.refused").unlink()
    job.run([step for step in STEPS if step["name"].startswith("Comment")])
    (after,) = job.comments()
    assert after["id"] == before["id"] and "gone: model.py:7 GB102" in after["body"]


@pytest.mark.slow
def test_target_that_the_base_lacks_has_no_comparison(start: Start) -> None:
    more = {"arguments": "--ignore\nGB102\n\n", "fail-on": "low"}
    job = start(CLEAN, CLEAN, target="added.py", **more)
    (job.checkout / "added.py").write_text(BROKEN)
    job.run()
    assert "::warning::torchproof could not check the target branch" in job.log
    assert not job.failed and "worse" not in job.outputs
    (comment,) = job.comments()  # the report instead
    assert "added.py" in comment["body"]


@pytest.mark.slow
def test_push_is_checked_alone(start: Start) -> None:
    job = start(CLEAN, BROKEN, target="model.py:make", effort="quick")
    job.base, job.event = "", "push"
    job.run()
    assert job.outputs["status"] == "1" and "worse" not in job.outputs, job.log
    assert re.search(r"^::error file=model\.py,line=7,", job.log, re.M)
    assert not job.comments() and "Comment on the pull request" not in job.codes
    assert "GB102" in job.summary()


def test_torchproof_is_installed_from_the_action_itself(start: Start) -> None:
    job = start(CLEAN, CLEAN, install="true", baseline="false")
    arguments = job.temp / "arguments"
    (job.temp / "bin" / "python").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {arguments}\n'
    )
    (job.temp / "bin" / "python").chmod(0o755)
    (install,) = (step for step in STEPS if "pip install" in step.get("run", ""))
    assert not job.run([install]).failed, job.log
    words = arguments.read_text().splitlines()
    assert words[:3] == ["-m", "pip", "install"] and words[-1] == str(ROOT)
