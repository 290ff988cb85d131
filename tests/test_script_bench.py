"""bench of a script: one run of it, its compiled and eager steps in turn."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from commands import PROGRAM, Done

from torchproof import api
from torchproof.measure.bench_plan import BenchOptions
from torchproof.records.options import Options
from torchproof.records.run import UserError

SPIN = """\
    import sys, time, torch

    def spin(ms):
        end = time.perf_counter() + ms / 1e3
        while time.perf_counter() < end:
            pass

"""
# Tracing leaves out what is not to be compiled: so eager takes 6 ms, compiled 3.
TWICE_AS_FAST = (
    SPIN
    + """\
    seen = []

    @torch.compile(backend="eager")
    def step(x):
        if not torch.compiler.is_compiling():
            seen.append(1)
            spin(3)
        return x + 1

    begin = time.monotonic()
    while True:
        step(torch.ones(2))
        spin(3)
        # Rounds are shorter on a busy machine, and all of them may be over before.
        if len(seen) == 85 or time.monotonic() - begin > 40:
            print("four rounds are over", flush=True)
    """
)
# Blocks compiled one by one, gradients accumulated over two calls of the model. The
# script sees to it itself that a step is of one kind from its beginning to its end, and
# trains an uncompiled copy beside.
TRAINING = """\
    import copy, sys, torch
    from torch._dynamo import eval_frame

    class Block(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).tanh()

    torch.manual_seed(0)
    plain = torch.nn.Sequential(*[Block(24, 24) for _ in range(3)])
    model = copy.deepcopy(plain)
    for block in model:
        block.compile(backend="aot_eager")
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-3) for m in (model, plain)]
    kinds = set()
    for step in range(300):
        stances = []
        for part in range(2):
            x = torch.randn(64, 24)
            for each in (model, plain):
                out = each(x).square().mean()
                stances.append(eval_frame._stance.stance)
                out.backward()
                stances.append(eval_frame._stance.stance)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        stances.append(eval_frame._stance.stance)
        assert len(set(stances)) == 1, stances
        kinds.add(stances[0])
    assert kinds == {"default", "force_eager"}, kinds
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    print("trained alike", *sys.argv[1:])
    """
# What torchproof sets is undone in every step; then the script fails.
OWN_STANCE = (
    SPIN
    + """\
    step = torch.compile(lambda x: x + 1, backend="eager")
    for _ in range(120):
        with torch.compiler.set_stance("default"):
            step(torch.ones(2))
        spin(3)
    raise ValueError("no more data")
    """
)


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


MORE = ("--format", "json", "--", "--rate", "3")


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Done]:
    """bench of two scripts."""
    scripts = {"training": TRAINING, "raising": OWN_STANCE}
    write(folder, **scripts)
    return {
        name: forked_commands.torchproof("bench", f"{name}.py", *MORE, cwd=folder)
        for name in scripts
    }


def rows(done: Done) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The run, its eager row and the row of the script as it is written."""
    run = json.loads(done.stdout)
    eager, compiled = run["measurements"]
    assert (eager["strategy"], compiled["strategy"]) == ("eager", "as-written")
    return run, eager, compiled


@pytest.mark.slow
def test_known_times_are_found_and_an_interruption_keeps_them(tmp_path: Path) -> None:
    write(tmp_path, faster=TWICE_AS_FAST)
    process = subprocess.Popen(
        [*PROGRAM, "bench", "faster.py", "--format", "json", "--seconds", "60"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "four rounds are over" in line:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    done = subprocess.CompletedProcess("", 130, out, err)
    run, eager, compiled = rows(done)
    assert run["ending"] == "interrupted" and run["environment"]["device"] == "cpu"
    # A busy machine may take longer, and never less.
    assert eager["median_ms"] >= 6 and compiled["median_ms"] >= 3
    assert (compiled["verdict"], compiled["vs_eager"]) == ("unverified", None)
    assert len(eager["rounds_ms"]) == len(compiled["rounds_ms"]) >= 4


def test_training_is_undisturbed_and_its_steps_are_timed(
    answers: dict[str, Done],
) -> None:
    done = answers["training"]
    assert done.returncode == 0, done.stderr
    assert "trained alike --rate 3" in done.stderr
    _, eager, compiled = rows(done)
    assert any("2 calls" in note and "optimizer" in note for note in compiled["notes"])
    # The first block's input needs no gradient.
    assert compiled["counts"]["graphs"] == 2
    assert eager["median_ms"] and compiled["median_ms"]
    assert compiled["first_call_s"] > 0 and compiled["compile_s"]["dynamo"] > 0
    assert compiled["start"]["label"] == "cold"
    assert compiled["numerics"]["verdict"] is None and compiled["peak_bytes"] is None
    assert compiled["verification"] == compiled["verdict"] == "unverified"
    assert compiled["repeats"] == [len(compiled["rounds_ms"])]
    assert any("stance" in note for note in eager["notes"])
    assert eager["first_call_s"] is None and eager["compile_s"] is None


def test_a_script_that_sets_the_stance_and_fails_keeps_what_was_seen(
    answers: dict[str, Done],
) -> None:
    done = answers["raising"]
    run, eager, compiled = rows(done)
    assert (done.returncode, run["exit_code"]) == (2, 1)
    assert run["error"].endswith(" 1: ValueError: no more data")
    shown = done.stderr.partition("Traceback")[2].partition("ValueError")[0]
    assert "raising.py" in shown and "torchproof" not in shown
    assert compiled["counts"]["graphs"] == 1
    assert compiled["verdict"] == "not measured" and not eager["rounds_ms"]
    assert any("stance" in note for note in compiled["notes"])


@pytest.mark.parametrize(
    ("flag", "options", "more"),
    [
        ("--strategies", {}, {"bench_options": BenchOptions(strategies=("full",))}),
        ("--batch", {}, {"bench_options": BenchOptions(batch=(4,))}),
        ("--train", {"train": True}, {}),
        ("--compile", {"compile": {"dynamic": True}}, {}),
        ("--profile", {}, {"profile": True}),
    ],
)
def test_flags_that_a_script_cannot_follow(
    flag: str, options: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, script="raise SystemExit('was run')\n")
    with pytest.raises(UserError, match=rf"script\.py .*: {flag} "):
        api.bench(f"{tmp_path}/script.py", Options(**options), save_in=tmp_path, **more)


def test_a_script_can_run_quietly(tmp_path: Path) -> None:
    write(tmp_path, script="raise SystemExit('was run')\n")
    run = api.bench(f"{tmp_path}/script.py", Options(quiet=True), save_in=tmp_path)
    assert run.exit_code == 1
