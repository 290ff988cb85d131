"""Runs on disk: written whole or not at all, found by id, prefix, folder or file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from check_runs import ITEM, check

from torchproof.records import store
from torchproof.records.run import Measurement, Run, UserError

RUN = check(
    ITEM,
    counts={"calls": 3, "graphs": None},
    measurements=(Measurement("eager", median_ms=1.0, rounds_ms=((1.0, 1.1),)),),
    error="a line",
)


def test_fields_of_a_newer_torchproof_are_kept(tmp_path: Path) -> None:
    plain = RUN.to_json()
    plain["recipe"] = {"mode": "default"}
    plain["findings"][0]["patch"] = "diff"
    plain["parts"]["breaks"]["seconds"] = 3
    assert json.loads(json.dumps(plain)) == plain
    store.save(Run.from_json(plain), tmp_path)
    assert store.load(RUN.id, tmp_path).to_json() == plain


def test_run_is_found_by_id_prefix_folder_and_file(tmp_path: Path) -> None:
    older = store.save(replace(RUN, id="20260101-0000-first"), tmp_path)
    latest = store.save(RUN, tmp_path)
    assert latest == store.load(RUN.id, tmp_path) == RUN
    assert {p.name for p in tmp_path.iterdir()} == {older.id, RUN.id}
    again = store.save(RUN, tmp_path)
    os.utime(tmp_path / latest.id / "run.json", (2e9, 2e9))
    assert again.id == f"{RUN.id}-2"
    assert store.load("20260101", tmp_path) == older
    assert store.load(str(tmp_path / older.id), Path("elsewhere")) == older
    assert store.load(str(tmp_path / older.id / "run.json")) == older
    assert store.load(None, tmp_path) == latest
    # An id that is the start of another one is itself.
    assert store.load(latest.id, tmp_path) == latest
    with pytest.raises(UserError, match=r"'20260102'.*\b2 runs"):
        store.load("20260102", tmp_path)
    with pytest.raises(UserError, match="'nothing'"):
        store.load("nothing", tmp_path)
    with pytest.raises(UserError, match=str(tmp_path / "empty")):
        store.load(None, tmp_path / "empty")


def test_saves_at_the_same_moment_do_not_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the name between the look and the renaming."""
    rename, taken = os.rename, list[Path]()

    def late(source: Path, target: Path) -> None:
        if not taken:
            taken.append(target)
            target.mkdir()
            (target / "run.json").write_text("{}")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert store.save(RUN, tmp_path).id == f"{RUN.id}-2"
    assert (taken[0] / "run.json").read_text() == "{}"
    assert {p.name for p in tmp_path.iterdir()} == {RUN.id, f"{RUN.id}-2"}


SAVER = """
import sys
from dataclasses import replace
from pathlib import Path
from torchproof.records import store
run = store.read(Path(sys.argv[1]))
run = replace(run, findings=run.findings * 2000)
print("ready", flush=True)
while True:
    store.save(run, Path(sys.argv[2]))
"""


def test_killed_process_leaves_no_broken_run(tmp_path: Path) -> None:
    original = store.save(RUN, tmp_path / "original")
    file, runs = tmp_path / "original" / original.id / "run.json", tmp_path / "runs"
    for attempt in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(file), str(runs)],
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.01 + 0.05 * attempt)
            process.send_signal(signal.SIGKILL)
    for folder in store.listing(runs):
        assert len(store.read(folder / "run.json").findings) == 2000
    # What a killed process may have begun is not taken for a run.
    store.save(RUN, runs)
    assert store.load(RUN.id, runs) == RUN


def test_saved_runs_are_not_part_of_a_repository(tmp_path: Path) -> None:
    root = tmp_path / store.RUNS
    store.save(RUN, root)
    ignored = root.parent / ".gitignore"
    assert ignored.read_text() == "*\n"
    ignored.write_text("!runs\n")
    store.save(RUN, root)
    assert ignored.read_text() == "!runs\n"  # the user's own
    store.save(RUN, tmp_path / "elsewhere")
    assert not (tmp_path / ".gitignore").exists()
