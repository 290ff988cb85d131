"""Packs are there whole or not at all, whoever else makes one and however it ends."""

from __future__ import annotations

import dataclasses
import gzip
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import made_packs
import pytest
from commands import run

from torchproof import packs
from torchproof.packs import writing
from torchproof.records.run import UserError

MAKER = """
import sys, time
from torchproof import packs
import made_packs
kind, dest, overwrite, seconds = sys.argv[1:]
make = {"folder": packs.folder, "archive": packs.archive}[kind]
try:
    with make(dest, overwrite=bool(int(overwrite))) as stage:
        made_packs.fill(stage)
        print("made", flush=True)
        time.sleep(float(seconds))
except packs.writing.UserError as error:
    sys.exit(str(error))
"""


def maker(
    kind: str, dest: Path, overwrite: bool = False, seconds: float = 0
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, kind, dest, str(int(overwrite)), str(seconds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([_SOURCE, _HERE])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


_HERE = str(Path(__file__).parent)
_SOURCE = str(Path(packs.__file__).parents[2])


MAKE = {"folder": packs.folder, "archive": packs.archive}


def trusted(at: Path) -> None:
    contents = packs.open_pack(at)
    packs.assert_trusted(contents)


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_of_several_at_once_one_has_the_name_and_the_others_say_so(
    kind: str, tmp_path: Path
) -> None:
    begun = [maker(kind, tmp_path / "a.tar.gz", seconds=0.5) for _ in range(3)]
    errors = [process.communicate(timeout=60)[1] for process in begun]
    assert sorted(process.returncode for process in begun) == [0, 1, 1]
    lines = [text.splitlines() for text in errors if text]
    assert [len(each) for each in lines] == [1, 1], lines
    assert all({"-o", "--overwrite"} <= set(re.findall(r"-+\w+", x[0])) for x in lines)
    trusted(tmp_path / "a.tar.gz")
    assert os.listdir(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("replaces", [False, True])
def test_one_that_is_killed_leaves_what_was_there(
    replaces: bool, tmp_path: Path
) -> None:
    at = tmp_path / "a"
    if replaces:
        made_packs.folder(at)
    before = (at / "manifest.json").read_bytes() if replaces else b""
    process = maker("folder", at, overwrite=replaces, seconds=60)
    assert process.stdout and process.stdout.readline() == "made\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = [name for name in os.listdir(tmp_path) if name[0] != "."]
    assert kept == (["a"] if replaces else [])
    if replaces:
        assert (at / "manifest.json").read_bytes() == before
        trusted(at)


def test_what_a_killed_process_left_goes_with_the_next_pack(tmp_path: Path) -> None:
    left, held = tmp_path / ".packing-left", tmp_path / ".packing-held"
    mine = tmp_path / ".packing-list"
    for work in (left, held, mine):
        (work / "pack").mkdir(parents=True)
    (mine / "things-to-pack.txt").write_text("socks")
    for work in (left, held, mine):
        os.utime(work, (0, 0))
    handle = os.open(held, os.O_RDONLY)
    try:
        writing.fcntl.flock(handle, writing.fcntl.LOCK_EX)
        with packs.folder(tmp_path / "a") as stage:
            made_packs.fill(stage)
    finally:
        os.close(handle)
    assert sorted(os.listdir(tmp_path)) == [".packing-held", ".packing-list", "a"]


@pytest.mark.parametrize("make", [packs.folder, packs.archive])
def test_an_error_leaves_nothing(make: object, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), make(tmp_path / "a") as stage:  # type: ignore[operator]
        made_packs.fill(stage)
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", MAKE)
def test_only_packs_are_replaced_and_only_with_overwrite(
    kind: str, tmp_path: Path
) -> None:
    make = MAKE[kind]
    at = made_packs.folder(tmp_path / "pack")
    with pytest.raises(UserError, match=r"-o\b.*--overwrite"), make(at):
        raise AssertionError("the work began")
    with make(at, overwrite=True) as stage:  # of the other form as well
        made_packs.fill(stage)
        stage.seal(packs.Manifest("deploy", "b", "0.1.0"))
    assert packs.open_pack(at).manifest.kind == "deploy"
    assert at.is_dir() == (kind == "folder") and os.listdir(tmp_path) == ["pack"]
    (tmp_path / "file.py").write_text("mine")
    (tmp_path / "data.gz").write_bytes(gzip.compress(b"mine"))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text('{"name": "mine"}')
    made_packs.folder(tmp_path / "noted")
    (tmp_path / "noted" / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to(at)
    (tmp_path / "empty").mkdir()
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for name in ("file.py", "data.gz", "site", "noted", "link", "empty"):
        with (
            pytest.raises(UserError, match="--overwrite"),
            make(tmp_path / name, overwrite=True),
        ):
            raise AssertionError("the work began")
    after = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    assert after == before


@pytest.mark.parametrize("kind", MAKE)
def test_what_came_to_lie_there_meanwhile_stays(kind: str, tmp_path: Path) -> None:
    make = MAKE[kind]
    with pytest.raises(UserError, match="--overwrite"), make(tmp_path / "a") as stage:
        made_packs.fill(stage)
        made_packs.folder(tmp_path / "a")
    trusted(tmp_path / "a")
    with (
        pytest.raises(UserError, match=r"--overwrite .*'notes\.txt'"),
        make(tmp_path / "a", overwrite=True) as stage,
    ):
        made_packs.fill(stage)
        (tmp_path / "a" / "notes.txt").write_text("mine")
    assert (tmp_path / "a" / "notes.txt").exists() and os.listdir(tmp_path) == ["a"]


def test_an_archive_is_the_same_each_time_and_tells_nothing(
    tmp_path: Path,
) -> None:
    made = []
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            (tmp_path / f"{mask}").mkdir()
            made.append(tmp_path / f"{mask}" / "a.tar.gz")
            with packs.archive(made[-1]) as stage:
                manifest = made_packs.fill(stage)
                stage.seal(dataclasses.replace(manifest, made="2026-01-02"))
        finally:
            os.umask(before)
    one, other = (path.read_bytes() for path in made)
    assert one == other
    listed = run(["tar", "tvzf", made[0]]).stdout.splitlines()
    assert all(line.startswith("-rw-r--r-- 0/0 ") for line in listed)
    assert all("1970-01-01" in line for line in listed)
    assert [line.split()[-1] for line in listed] == [
        *("a/manifest.json", "a/empty", "a/logs/torch/out.txt", "a/repro.py")
    ]


def test_a_programs_mode_is_kept_and_the_rest_is_plain(tmp_path: Path) -> None:
    with packs.folder(tmp_path / "a") as stage:
        (stage.path / "run.sh").write_text("#!/bin/sh\n")
        (stage.path / "run.sh").chmod(0o700)
        made_packs.fill(stage)
    modes = {
        path.relative_to(tmp_path).as_posix(): oct(path.stat().st_mode & 0o7777)
        for path in (tmp_path / "a", *(tmp_path / "a").rglob("*"))
    }
    assert {modes.pop(n) for n in ("a", "a/logs", "a/logs/torch", "a/run.sh")} == {
        "0o755"
    }
    assert set(modes.values()) == {"0o644"}
