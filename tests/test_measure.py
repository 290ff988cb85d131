"""How a session goes on when strategies fail, hang, or are interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import PROGRAM
from forked_commands import Forked, forked
from forked_workers import backends, by_backend, measured

from torchproof import observe
from torchproof.cli import main
from torchproof.measure import bench_plan
from torchproof.measure import rows as measure_rows
from torchproof.measure.session import Session
from torchproof.measure.specs import MeasureResult
from torchproof.records import store
from torchproof.records.events import Observation
from torchproof.records.run import Run, UserError

LYING = Path(__file__).parent / "models" / "lying.py"
BATCHED = f"{LYING}:batched"


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- strategies that fail --------------------------------------------------------------


@pytest.mark.slow
def test_a_strategy_that_hangs_is_ended_and_the_others_go_on() -> None:
    rows = by_backend(
        measured(f"{LYING}:adding", backends("hangs", "right"), timeout_s=6)
    )
    assert rows["hangs"].verdict == "failed"
    assert " 6 s" in rows["hangs"].error and "--timeout" in rows["hangs"].error
    assert rows["right"].verification == "verified" and rows["right"].median_ms
    assert not any(map(is_alive, Forked.begun))


@pytest.mark.slow
def test_without_eager_nothing_is_compared_with_it() -> None:
    found = measured(f"{LYING}:dying_in_eager", backends("eager"), rounds=20)
    eager, row = found.rows
    assert eager.verdict == "failed" and eager.error is not None
    assert "exit code 3" in eager.error
    assert row.rounds_ms and row.median_ms is not None
    assert row.vs_eager is None and row.verdict == "no eager to compare with"


# -- interruptions ---------------------------------------------------------------------


def interrupted_at(words: str, **more: Any) -> MeasureResult:
    """Interrupted by the first line of progress that has these words, in order."""

    def progress(text: str) -> None:
        if re.search(words, text):
            raise KeyboardInterrupt

    return measured(BATCHED, backends("eager"), progress=progress, **more)


def test_an_interruption_keeps_the_rounds_that_all_strategies_have() -> None:
    found = interrupted_at(r"\b3 of \d+\b.*\bfull\b", rounds=20)
    assert found.ending == "interrupted"
    assert [len(row.rounds_ms) for row in found.rows] == [2, 2]
    assert all(row.median_ms is not None for row in found.rows)
    assert not any(map(is_alive, Forked.begun))


@pytest.mark.slow
def test_an_interruption_in_the_second_repeat_keeps_the_first() -> None:
    found = interrupted_at(r"\bwarm\b", repeats=2)
    assert [len(row.rounds_ms) for row in found.rows] == [4, 4]
    assert [row.repeats for row in found.rows] == [(4,), (4,)]


def test_an_early_interruption_leaves_rows_without_times() -> None:
    found = interrupted_at("reference")
    assert [row.verdict for row in found.rows] == ["reference", "not measured"]
    run = Run("id", BATCHED, "", found.environment, {}, measurements=found.rows)
    assert Run.from_json(run.to_json()).measurements == found.rows


SLOW_TARGET = """
import pathlib, time, torch

def make():
    calls = []
    def step(x):
        print("said by the target")
        calls.append(time.sleep(0.002))
        if len(calls) == 150:
            pathlib.Path("sampled").touch()
        return x + 1
    return step, [(torch.ones(8),)]
"""


@pytest.mark.slow
def test_ctrl_c_saves_the_run_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TARGET)
    flags = ["--strategies", "eager", "--seconds", "100", "--format", "json"]
    with subprocess.Popen(
        [*PROGRAM, "bench", "slow.py:make", *flags],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not (tmp_path / "sampled").exists():
            time.sleep(0.05)
        for line in process.stderr:
            if "round 2 of" in line:
                break
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert family and not any(is_alive(member.pid) for member in family)
    document = json.loads(stdout)  # one, whatever the target prints
    assert document["ending"] == "interrupted"
    [row] = document["measurements"]
    assert row["median_ms"] >= 2.0
    saved = store.load(None, tmp_path / store.RUNS)
    assert saved.id == document["id"] and saved.measurements[0].rounds_ms


# -- strategies that do not fit in memory together -------------------------------------


@pytest.mark.slow
def test_strategies_run_one_by_one_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Session, "has_room", lambda self, count=1: False)
    at_once: list[int] = []

    def count(text: str) -> None:
        if text.startswith("round"):
            at_once.append(sum(map(is_alive, Forked.begun)))

    found = measured(BATCHED, backends("eager"), progress=count)
    assert found.apart
    # A strategy and the reference; the other strategy has imported torch early.
    assert set(at_once) == {2, 3}
    for row in found.rows:
        assert len(row.repeats) == 3 and row.median_ms is not None
        assert measure_rows._APART in row.notes


def test_steps_only_start_together_and_have_no_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    alive: list[int] = []

    def count(text: str) -> None:
        if text.startswith("round 1 of"):
            alive.append(sum(map(is_alive, Forked.begun)))

    specs = backends("eager")[1:]
    [row] = measured(BATCHED, specs, progress=count, repeats=3, first_calls=False).rows
    assert alive == [2, 3, 2]  # with the reference; later repeats start together
    assert len(row.repeats) == 3 and row.numerics["verdict"] == "same"
    assert row.first_call_s is row.start is row.warm_start is row.compile_s is None
    assert row.break_even is None


# -- questions -------------------------------------------------------------------------


def test_recompiles_are_those_of_each_batch() -> None:
    shapes = tuple({"batch": size} for size in (2, 4, 6))
    found = measured(BATCHED, backends("eager"), shapes=shapes)
    rows = [row for row in found.rows if row.strategy == "full"]
    assert [row.variant["batch"] for row in rows] == [2, 4, 6]
    # One graph, and one for any size, which 6 uses as well.
    assert [(row.counts or {})["recompiles"] for row in rows] == [0, 1, 0]
    assert [(row.counts or {})["graphs"] for row in rows] == [1, 1, 0]
    assert all(row.peak_bytes for row in found.rows)  # known after the timing
    eager = [row for row in found.rows if row.strategy == "eager"]
    assert len(eager) == 3 and all(row.verdict == "reference" for row in eager)


def test_an_unknown_switch_is_refused_with_the_nearest() -> None:
    known = {"max_autotune": False, "cpp.threads": -1}
    with pytest.raises(UserError, match=r"max_autotune\b"):
        bench_plan.resolve_ablation([("max_autotun", None)], known)
    with pytest.raises(UserError, match=r"cpp\.threads"):
        bench_plan.resolve_ablation([("cpp.threads", None)], known)
    assert bench_plan.resolve_ablation([("max_autotune", None)], known) == (
        ("max_autotune", True),
    )


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """`command(target, *flags)`: exit code, stdout and stderr of a bench.

    Its processes are forked; what the compiler breaks is not counted.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(observe, "observe", lambda *arguments: Observation((), {}))

    def run(target: str, *flags: str) -> tuple[int, str, str]:
        Forked.begun.clear()
        with forked():
            code = main(["bench", target, "-q", "--seconds", "0.1", *flags])
        done = capsys.readouterr()
        return code, done.out, done.err

    yield run
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_compiled_target_is_compared_with_itself_in_eager(command: Any) -> None:
    target = f"{LYING}:compiled_already"
    code, stdout, _ = command(target, "--repeats", "1", "--format", "json")
    assert code == 0
    eager, row = json.loads(stdout)["measurements"]
    assert [eager["strategy"], row["strategy"]] == ["eager", "as-written"]
    assert eager["counts"] is None and row["counts"]["graphs"] == 1


@pytest.mark.parametrize(
    ("factory", "flags", "why"),
    [
        ("failing", (), r"\beager\b.*RuntimeError: no luck"),
        ("adding", ("--batch", "2,4"), "'batch'"),
        ("batched", ("-o", "old.json"), r"old\.json"),
        (
            "compiled_already",
            ("--strategies", "full"),
            "compiled_already.*--strategies",
        ),
    ],
)
def test_a_bench_that_cannot_run_says_why_in_one_line(
    command: Any, factory: str, flags: tuple[str, ...], why: str
) -> None:
    Path("old.json").write_text("mine")
    code, stdout, stderr = command(f"{LYING}:{factory}", *flags)
    assert code == 2 and stdout == ""
    [line] = stderr.splitlines()
    assert line.startswith("torchproof: error: ") and re.search(why, line)
    assert Path("old.json").read_text() == "mine"
    if "-o" in flags:  # known before the work
        assert not Forked.begun and not os.path.exists(store.RUNS)


def test_an_interruption_before_the_first_strategy_ends_the_bench(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Observation((), {}, ending="interrupted")
    monkeypatch.setattr(observe, "observe", lambda *arguments: stopped)
    code, stdout, _ = command(BATCHED, "--format", "json")
    assert code == 130 and json.loads(stdout)["ending"] == "interrupted"
    assert not Forked.begun
