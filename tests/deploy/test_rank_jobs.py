"""The ranks that build a pack: one that fails, ends, hangs, or does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchproof.packs import deploy
from torchproof.packs.deploy import PackJob, rank_jobs
from torchproof.process import rank_variables, spawn
from torchproof.records import UserError
from torchproof.runtime import Unverified
from torchproof.targets import Job, Options, Target, parallel

# Another rank, without torch: reports what the test says.
RANK = """
import os, time
from torchproof.process import Stream, hold
hold()
stream = Stream()
{}
"""
HANGS = "time.sleep(600)"
CALLS = "stream.write('facts', details={{'calls': [{{'keys': ['a']}}] * {}}})"
FACTS = {"details": {"calls": [{"keys": ["a"]}, {"keys": ["a"]}]}}


class Stopped(Exception):
    """Stands for the end of the process."""


def job(folder: Path, **changes: Any) -> PackJob:
    target = Target("x.py:make", "factory", str(folder / "x.py"))
    plain: dict[str, Any] = {
        "artifact": "caches",
        "recipe": None,
        "strategy": "full",
        "stage": str(folder / "stage"),
        "scratch": str(folder),
        "ranks": 2,
    }
    return PackJob(**{"run": Job(target), **plain, **changes})


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The devices with which this process joined; there is no process group."""
    devices: list[str | None] = []
    for name in rank_variables(0, 2, 0):
        monkeypatch.setenv(name, "")  # to be restored
    monkeypatch.setattr(parallel, "join", devices.append)
    monkeypatch.setattr(parallel, "leave", lambda: None)
    monkeypatch.setattr(rank_jobs, "_GRACE_S", 0.2)
    return devices


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: list[str | None]
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs a job as rank 0, beside a rank with this code."""
    started = []

    def run(body: str, work: rank_jobs.Work, **changes: Any) -> dict[str, Any]:
        def start(*arguments: str) -> Any:
            started.append(spawn("-c", RANK.format(body)))
            return started[-1]

        monkeypatch.setattr(rank_jobs, "spawn", start)
        return rank_jobs.run(job(tmp_path, **changes), work, no_end)

    yield run
    assert all(child.poll() is not None for child in started)


def no_end(error: Exception) -> None:
    raise AssertionError(error)


def works(each: PackJob) -> dict[str, Any]:
    return FACTS


def fails(each: PackJob) -> dict[str, Any]:
    raise UserError("no such layer")


def breaks(each: PackJob) -> dict[str, Any]:
    raise RuntimeError("Connection closed by peer")


def test_ranks_that_compile_the_same(run: Any) -> None:
    assert run(CALLS.format(2), works) == FACTS


@pytest.mark.parametrize(
    ("body", "work", "error", "reason"),
    [
        (CALLS.format(3), works, Unverified, "rank 1 has 3 calls and rank 0 has 2"),
        (
            CALLS.format(2).replace("'a'", "'b'"),
            *(works, Unverified, "rank 1 compiles other code than rank"),
        ),
        (
            "stream.write('unverified', message='boom')",
            *(works, Unverified, r"^on rank 1: boom$"),
        ),
        # Nobody waits for it, although rank 0 would wait long for one that runs.
        ("os._exit(3)", works, Unverified, r"rank 1: its process ended .* 3"),
        # The others say nothing, so that the own error counts.
        (HANGS, fails, UserError, r"^no such layer$"),
        # The connection breaks because the other rank has failed.
        ("stream.write('unusable', message='boom')", breaks, UserError, "1: boom$"),
    ],
)
def test_rank_with_other_code_is_refused(
    body: str,
    work: rank_jobs.Work,
    error: type[Exception],
    reason: str,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if work is breaks:
        monkeypatch.setattr(rank_jobs, "_GRACE_S", 60.0)
    role = {"role": "verify"} if "_exit" in body else {}
    with pytest.raises(error, match=reason):
        run(body, work, **role)


def test_a_rank_that_fails_while_the_first_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: list[str | None]
) -> None:
    """The work never ends by itself: it waits in a collective."""
    ends: list[Exception] = []
    ended = threading.Event()

    def end(error: Exception) -> None:
        ends.append(error)
        ended.set()

    def waits(each: PackJob) -> dict[str, Any]:
        assert ended.wait(120)
        raise Stopped

    code = RANK.format("stream.write('unusable', message='boom')")
    monkeypatch.setattr(rank_jobs, "spawn", lambda *arguments: spawn("-c", code))
    with pytest.raises(UserError, match=r"boom"):
        rank_jobs.run(job(tmp_path), waits, end)
    assert [str(error) for error in ends] == ["on rank 1: boom"]


def test_a_rank_joins_with_the_device_of_the_workload(
    tmp_path: Path, joined: list[str | None]
) -> None:
    """Not known before: without it, all ranks would use gloo and one GPU."""
    target = Target("workload:nanovlm", "workload", "nanovlm")
    devices = []

    def work(each: PackJob) -> dict[str, Any]:
        devices.append(each.run.device)
        return {}

    this = job(tmp_path, run=Job(target, size="tiny"), rank=1, port=1)
    rank_jobs.run(this, work, no_end)
    assert joined == devices and joined[0] in ("cpu", "cuda")


def test_a_rank_that_ends_before_it_joins(tmp_path: Path) -> None:
    """Two real ranks: the first one would wait for it in the process group."""
    (tmp_path / "rank-1").write_text("where the other rank wants its folder")
    (tmp_path / "stage").mkdir()
    with pytest.raises(UserError, match=r"on rank 1: .*FileExistsError") as error:
        deploy._child(
            job(tmp_path), Options(timeout_s=200.0, quiet=True), lambda text: None
        )
    assert not isinstance(error.value, Unverified)
