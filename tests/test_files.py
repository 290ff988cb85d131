"""Paths that users give may name anything: each is refused in one line, at once."""

from __future__ import annotations

import os
import signal
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torchproof as package
from torchproof.records import blame, files
from torchproof.records.run import UserError
from torchproof.runtime.pack_format.contents import open_pack

LONG = "x" * 5000


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))


def unreadable(path: Path) -> None:
    path.write_text("x")
    path.chmod(0)


# What a path that users give may be made into, and paths that nothing is made of.
MADE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": bound,
    "symlink loop": lambda path: path.symlink_to(path),
    "directory": Path.mkdir,
    "missing": str,
}
if os.geteuid() != 0:  # root reads every file
    MADE["unreadable"] = unreadable
PATHS = {
    "device": "/dev/zero",
    "null device": "/dev/null",
    "NUL": "{}\0.toml",
    "long name": "{}" + LONG,
    "below a file": f"{__file__}/x",
}


@pytest.fixture(params=[*MADE, *PATHS])
def odd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A path, in a test that is ended where it would block."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "odd"
    if request.param in MADE:
        MADE[request.param](path)
    signal.alarm(30)
    yield PATHS.get(request.param, "{}").format(path)
    signal.alarm(0)


def test_odd_path_is_not_opened(odd: str) -> None:
    with pytest.raises(OSError) as raised:
        files.read_bytes(odd, 100)
    assert raised.value.strerror


def test_regular_files_and_links_to_them_are_read_up_to_a_limit(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        assert files.read_bytes(tmp_path / name, 3) == b"abc"
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    # The size of the second is 0 to the system.
    for huge in (tmp_path / "huge", "/proc/self/maps"):
        with pytest.raises(OSError, match="larger than"):
            files.read_bytes(huge, 10)


def test_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 3_000_000)
    tracemalloc.start()
    try:
        assert len(files.read_bytes(tmp_path / "small", 1 << 30)) == 3_000_000
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_recipe_or_pack_at_an_odd_path_is_a_user_error(odd: str) -> None:
    import torch

    with pytest.raises(UserError):
        open_pack(odd)
    for reader in (package.compile, package.graph):
        for path in (odd, Path(odd)):
            with pytest.raises(UserError):
                reader(torch.nn.Linear(1, 1), recipe=path)


VERBS = (
    "show {}",
    "compare {} {}",
    "check {} --effort static",
    "check trace:{}",
    "check {}:make",
    "check workload:gpt --baseline {}",
    "pack {} --for repro",
    "pack workload:gpt --for deploy --key {}",
    "pack workload:gpt --for deploy --recipe {}",
    "log --file {}",
    "log plan text --file {}",
)


def assert_refused(answer: Callable[..., tuple[int, str, str]], *words: str) -> None:
    code, out, err = answer(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err


@pytest.mark.parametrize("command", VERBS)
def test_command_refuses_an_odd_path_in_one_line(
    odd: str, command: str, answer: Any
) -> None:
    if os.path.isdir(odd) and command.startswith(("check {} ", "check trace")):
        pytest.skip("a folder is what this command reads")
    if command.startswith("log") and not os.path.lexists(odd) and odd.endswith("odd"):
        pytest.skip("a new log")
    assert_refused(answer, *(word.format(odd, odd) for word in command.split()))


def test_impossible_name_fails_before_the_work(answer: Any) -> None:
    for command in (
        "check workload:gpt -o",
        "tune workload:gpt --recipe",
        "pack workload:gpt --for deploy -o",
    ):
        assert_refused(answer, *command.split(), LONG)


def test_only_python_files_are_read_for_lines_of_source(tmp_path: Path) -> None:
    for name in ("module.py", "id_rsa", "secret.json"):
        (tmp_path / name).write_text("one\ntwo\n")
    assert blame.lines_of(str(tmp_path / "module.py")) == ["one\n", "two\n"]
    assert blame.lines_of(str(tmp_path / "id_rsa")) == []
    assert blame.lines_of(str(tmp_path / "secret.json")) == []
