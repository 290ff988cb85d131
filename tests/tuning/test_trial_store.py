"""Trials on disk: read back whole, or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_executor import Fate

from torchproof.records.run import UserError
from torchproof.tuning.trial_store import TrialStore

KEY = {"target": "fake"}


def written(root: Path, *names: str) -> Path:
    """The folder of a search that had these trials."""
    saved_trials = TrialStore(KEY, resume=False, root=root)
    for name in names:
        saved_trials.add(Fate(5.0).trial(name))
    saved_trials.close(finished=True)
    return saved_trials.folder


def read(root: Path) -> list[str]:
    saved_trials = TrialStore(KEY, resume=True, root=root)
    saved_trials.close(finished=True)
    return [*saved_trials.trials]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written(tmp_path, "full", "regional")
    saved_trials = TrialStore(KEY, resume=True, root=tmp_path)
    assert saved_trials.find("full", 10.0) == Fate(5.0).trial("full")
    assert saved_trials.find("nested", 10.0) is None
    saved_trials.close(finished=True)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b'{"name": "full", "stage": "for',
        bytes(range(256)),
        b"[]",
        b"null",
        b'{"outcome": "measured"}',
        {"name": ["full"]},
        {"name": None},
        {"outcome": "splendid"},
        {"step_ms": "fast"},
        {"step_ms": True},
        {"step_ms": -1.0},
        {"step_ms": float("nan")},
        {"peak_bytes": [1]},
        {"vs_eager_low": {}},
        {"facts": None},
        {"facts": {}},
    ],
)
def test_what_is_damaged_counts_as_not_tried(tmp_path: Path, damage: Any) -> None:
    folder = written(tmp_path, "full", "regional")
    path = folder / "trial-001.json"
    if isinstance(damage, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    else:
        path.write_bytes(damage)
    assert read(tmp_path) == ["regional"]


def test_no_trial_is_written_over_another(tmp_path: Path) -> None:
    folder = written(tmp_path, "full", "regional", "nested")
    (folder / "trial-001.json").unlink()
    saved_trials = TrialStore(KEY, resume=True, root=tmp_path)
    saved_trials.add(Fate(5.0).trial("core"))
    saved_trials.close(finished=True)
    assert read(tmp_path) == ["regional", "nested", "core"]


def test_a_search_that_goes_on_is_not_taken_from(tmp_path: Path) -> None:
    first = TrialStore(KEY, resume=False, root=tmp_path)
    with pytest.raises(UserError, match="another search"):
        TrialStore(KEY, resume=True, root=tmp_path)
    second = TrialStore(KEY, resume=False, root=tmp_path)
    assert second.folder != first.folder
    for each in (first, second):
        each.close(finished=True)


def test_a_folder_that_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tune").write_text("in the way")
    with pytest.raises(UserError, match=str(tmp_path / "tune")):
        TrialStore(KEY, resume=False, root=tmp_path / "tune")
