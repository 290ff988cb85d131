"""What a run records about where it ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import git

from torchproof.records.repository import repository_of
from torchproof.targets import Job, parse
from torchproof.torch_private import environment

UNKNOWN = {"commit": None, "dirty": None}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    repository_of.cache_clear()
    path = tmp_path / "model.py"
    path.write_text("def make(): ...\n")
    return path


def test_a_commit_and_changes_since(file: Path) -> None:
    assert repository_of(file) == UNKNOWN  # without a repository
    repository_of.cache_clear()
    git(file.parent, "init", "-q")
    assert repository_of(file) == UNKNOWN  # without a commit
    git(file.parent, "add", "model.py")
    git(file.parent, "commit", "-qm", "one")
    commit = git(file.parent, "rev-parse", "HEAD").strip()
    (file.parent / "other.txt").touch()
    repository_of.cache_clear()
    assert repository_of(file) == {"commit": commit, "dirty": False}
    file.write_text("changed\n")
    repository_of.cache_clear()
    assert repository_of(file) == {"commit": commit, "dirty": True}
    untracked = file.with_name("untracked.py")
    untracked.touch()
    git(file.parent, "checkout", "-q", "model.py")
    assert repository_of(untracked) == {"commit": commit, "dirty": True}


def test_without_git_nothing_is_known(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(file.parent))
    assert repository_of(file) == repository_of(None) == UNKNOWN


def test_environment_of_a_target(file: Path) -> None:
    facts = environment.describe(Job(parse(f"{file}:make")))
    assert {"commit", "dirty"} <= set(facts)
    workload = environment.describe(Job(parse("workload:gpt")))
    assert workload["commit"] is None
