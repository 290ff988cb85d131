"""`pack --for repro`: its recording, then with a stand-in for the runs of torch.

test_packs_of_failures.py runs the command.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any
from unittest import mock

import check_runs
import pytest
from forked_commands import forked
from opened_packs import texts as texts_of

from torchproof import packs
from torchproof.packs import repro
from torchproof.packs.repro.candidate import Candidate, Outcome
from torchproof.packs.repro.target_recording import (
    RecordingJob,
    TargetRecording,
    record_target,
)
from torchproof.records.options import Options
from torchproof.records.run import Run, Symptom
from torchproof.targets.job import Job
from torchproof.targets.target import Target

PROGRAM = """
import torch

def fn(x):
    if x.sum().item() > 0:
        return x + 1
    raise RuntimeError("no harvest")

def make():
    return fn, [(torch.ones(2),), (-torch.ones(2),)]
"""


def test_recording_of_a_target_has_its_graphs_and_facts(tmp_path: Path) -> None:
    """Also if it fails in the end, as that may be the failure."""
    (tmp_path / "mill.py").write_text(PROGRAM)
    run = Job(Target("mill.py:make", "factory", str(tmp_path / "mill.py")))
    job = RecordingJob(run, folder=str(tmp_path))
    with forked():
        found = record_target(job, Options(quiet=True), print)
    assert [each.form for each in found.candidates] == ["graph"] * 2
    assert found.facts["device"] == "cpu" and not found.train


# -- the command, with a stand-in ------------------------------------------------------

NAME, HOME = "wanda77", "/home/wanda77"
SECRET = "Zx9-quite/long-77"
PRIVATE = f'File "{HOME}/net.py", line 3 {SECRET} {SECRET!r} {NAME}@laptop'
SOURCE = f"""# {PRIVATE}
import torch

PLACE = {HOME + "/data"!r}
KEY = {SECRET!r}


def make():
    return torch.sin, []
"""


class FakeRunner:
    """Gives each candidate the same verdicts, and prints all private values."""

    def __init__(self, forked: Any = "same", isolated: Any = "same") -> None:
        self.forked, self.isolated = forked, isolated
        self.verified: list[str] = []

    def __call__(self, *_: Any, **__: Any) -> FakeRunner:
        return self

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *_: object) -> None: ...

    def text(self, candidate: Candidate) -> str:
        return candidate.source

    def run_forked(self, candidate: Candidate) -> Outcome:
        return Outcome(self.forked, f"FAILS AS STATED: {PRIVATE}", 0.1)

    def run_isolated(self, text: str, *_: Any) -> Outcome:
        self.verified.append(text)
        line = f"FAILS AS STATED: GB0124 {PRIVATE}"
        return Outcome(self.isolated, line, 0.1, f"{PRIVATE}\n{line}\n")


GRAPH = Candidate(
    "graph", SOURCE, f"of {NAME}", 3, origin="0/0", record={"variants": []}
)
RECORDING = TargetRecording(
    (GRAPH,),
    (PRIVATE,),
    {
        "torch": "2.13.0",
        "variables": {"HF_TOKEN": SECRET},
        "configs": {"torch._dynamo.config": {"debug_dir_root": f"{HOME}/debug"}},
    },
)


def build(folder: Path, runner: FakeRunner, **changes: Any) -> Path:
    """The whole command but for the processes that it starts."""
    path = folder / "it.tar.gz"
    finding = dataclasses.replace(
        check_runs.ITEM,
        symptom=Symptom("Unsupported call", PRIVATE, "GB0124"),
        file=f"{HOME}/net.py",
    )
    facts = {"device": "cpu", "python": "3.11.7"}
    run = Run("r", "net.py:make", "as-written", facts, {}, (finding,))
    target = Target(f"{HOME}/net.py:make", "factory", f"{HOME}/net.py")
    subject = dataclasses.replace(repro.Subject(run, target, Options()), **changes)
    collect_env = mock.MagicMock()  # the real one starts pip
    collect_env().__enter__().text.return_value = PRIVATE
    variables = {"USER": NAME, "HOME": HOME, "HF_TOKEN": SECRET}
    variables["PATH"] = os.environ["PATH"]
    with (
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(repro, "record_target", lambda *_: RECORDING),
        mock.patch.object(repro, "ReproRunner", runner),
        mock.patch.object(repro.versions, "CollectEnv", collect_env),
    ):
        repro.pack(
            subject,
            repro.ReproOptions(),
            dest=path,
            overwrite=False,
            progress=lambda _: None,
            command=f"torchproof pack {HOME}/net.py:make --for repro",
        )
    return path


def test_no_file_has_a_private_value(tmp_path: Path) -> None:
    runner = FakeRunner()
    texts = texts_of(build(tmp_path, runner))
    for private in (SECRET, repr(SECRET)[1:-1], HOME, NAME):
        assert not [name for name, text in texts.items() if private in text], private
    assert runner.verified == [texts["repro.py"]]  # as packed
    assert "KEY" in texts["repro.py"] and "torch.sin" in texts["repro.py"]


def test_every_file_is_redacted(tmp_path: Path) -> None:
    """Without redaction, the search of the test above finds the values everywhere."""
    unchanged = {"text": lambda _, text: text, "source": lambda _, text: text}
    with mock.patch.multiple(repro.Redactor, **unchanged):
        texts = texts_of(build(tmp_path, FakeRunner()))
    found = {name for name, text in texts.items() if NAME in text}
    expected = {"README.md", "manifest.json", "command.txt", "logs/torch.txt"}
    assert expected | {"repro.py", "graphs/graph_0_0.py"} <= found


@pytest.mark.parametrize("verdicts", [("none", "same"), ("same", "other")])
def test_failure_that_does_not_return_gives_no_pack(
    verdicts: tuple[str, str], tmp_path: Path
) -> None:
    with pytest.raises(packs.Unverified, match=r"expected: .*; got: graph: "):
        build(tmp_path, FakeRunner(*verdicts))
    assert list(tmp_path.iterdir()) == []


def test_script_that_ran_is_not_run_again(tmp_path: Path) -> None:
    script = Target("mill.py", "script", str(tmp_path / "mill.py"))
    with pytest.raises(packs.Unverified, match="runs only once"):
        build(tmp_path, FakeRunner(), target=script, has_run=True)
    build(tmp_path, FakeRunner(), target=script, has_run=False)
