"""`torchproof loadtest` as a user runs it: requests, exit codes, what is saved."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from commands import PROGRAM, Done
from forked_commands import torchproof

from torchproof.measure.loadtest import served_strategy
from torchproof.records import LoadTest, Run, store
from torchproof.strategies import NotApplicable, parse, planning, source_lines
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.strategies.recipe.matching import environment_here

TARGETS = """
import os, time
import torch

answered = 0


class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2


def make(batch=1):
    return Net(), [(torch.ones(batch, 2),), (torch.ones(batch, 3),)]


def call_weight(call):
    return call[0].shape[-1]


def _counting(act):
    def fn(x):
        global answered
        answered += 1
        act(answered)
        return x

    return fn, [(torch.ones(1),)]


def dies_at_10():
    def act(number):
        if number == 5 or torch.is_grad_enabled():
            raise ValueError("no room for request 5")
        if number == 10:
            os._exit(7)

    return _counting(act)


def hangs_at_10():
    return _counting(lambda number: number == 10 and time.sleep(99))


def other_model():
    return torch.nn.Linear(2, 2), [(torch.ones(1, 2),)]


def compiled():
    return torch.compile(Net(), backend="eager"), [(torch.ones(1),)]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loadtest")
    (root / "served.py").write_text(TARGETS)
    return root


def loadtest(folder: Path, factory: str, *arguments: str) -> Done:
    line = ["loadtest", f"served.py:{factory}", "--format", "json", "-q", *arguments]
    if "--strategies" not in line and "--as-written" not in line:
        line += ["--strategies", "eager"]
    return torchproof(*line, cwd=folder)


def load_test_of(done: Done) -> LoadTest:
    run = Run.from_json(json.loads(done.stdout))
    assert run.verb == "loadtest"
    assert run.load_test is not None
    return run.load_test


def test_strategies_answer_the_same_timetable(folder: Path) -> None:
    """In the processes that users run; other tests fork them."""
    arguments = ("--rate", "200", "--requests", "60", "--slo", "p50=10s")
    strategies = ("--strategies", "eager,compile:eager", "--workers", "2")
    line = ("loadtest", "served.py:make", "--format", "json", "-q")
    done = commands.torchproof(*line, *arguments, *strategies, cwd=folder)
    assert done.returncode == 0, done.stderr
    test = load_test_of(done)
    assert test.calls == ("1x2", "1x3")
    assert test.weights == (2.0, 3.0)
    assert (test.planned, test.workers, test.rate) == (60, 2, 200)
    eager, compiled = test.results
    assert eager.requests.arrival_s == compiled.requests.arrival_s
    assert eager.requests.call == compiled.requests.call
    assert {*eager.requests.call} == {0, 1}
    assert eager.answered == compiled.answered == 60
    assert eager.verdict == "met"
    assert eager.cold.start_s > 0
    assert eager.cold.first_answer_s > 0
    assert "torchproof.compile(model" in compiled.source
    saved = store.load(json.loads(done.stdout)["id"], folder / store.RUNS)
    assert saved.load_test == test


def test_a_process_that_dies_keeps_what_it_answered(folder: Path) -> None:
    """A request that fails is counted; the others are answered without gradients."""
    done = loadtest(folder, "dies_at_10", "--rate", "500", "--requests", "40")
    [result] = load_test_of(done).results
    assert (result.answered, result.failed, result.unserved) == (8, 1, 31)
    assert result.requests.failed == (4,)
    assert result.ending == "crashed"
    assert "exit code 7" in result.error
    assert done.returncode == 0  # requests were answered: the result says the rest


@pytest.mark.slow
def test_a_call_that_hangs_ends_with_the_timeout(folder: Path) -> None:
    done = loadtest(
        folder, "hangs_at_10", "--rate", "500", "--requests", "40", "--timeout", "5"
    )
    [result] = load_test_of(done).results
    assert result.answered == 9
    assert result.ending == "timeout"
    assert result.error


def test_batches_are_made_by_the_factory_and_the_highest_rate_is_searched(
    folder: Path,
) -> None:
    window = ("--batch-window", "20ms", "--max-batch", "4")
    search = ("--slo", "p50=1us", "--find-rate", "--no-cold")
    load = ("--rate", "500", "--requests", "80")
    done = loadtest(folder, "make", *load, *window, *search)
    assert done.returncode == 1, done.stderr
    test = load_test_of(done)
    assert (test.batch_window_ms, test.max_batch) == (20, 4)
    [result] = test.results
    assert (result.answered, max(result.requests.batch)) == (80, 4)
    assert (result.verdict, result.goodput_rate, result.cold) == ("missed", 0, None)
    assert result.highest_rate is None
    assert {trial.verdict for trial in result.trials} == {"missed"}


def test_a_file_of_requests(folder: Path) -> None:
    lines = ["0.0,1", "0.01,0", '{"time": 0.02, "sizes": {"batch": 5}}']
    (folder / "requests.txt").write_text("\n".join(lines))
    done = loadtest(folder, "make", "--arrivals", "requests.txt")
    assert done.returncode == 0, done.stderr
    test = load_test_of(done)
    assert test.calls == ("1x2", "1x3", "5x2")
    [result] = test.results
    assert result.requests.call == (1, 0, 2)
    assert result.requests.arrival_s == (0.0, 0.01, 0.02)
    assert (test.rate, test.weights) == (None, ())


def test_a_target_that_compiles_itself_is_served_as_written(folder: Path) -> None:
    arguments = ("--rate", "500", "--requests", "20")
    done = loadtest(folder, "compiled", *arguments, "--as-written")
    assert done.returncode == 0
    [result] = load_test_of(done).results
    assert (result.strategy, result.answered) == ("as-written", 20)
    refused = loadtest(folder, "compiled", *arguments)
    assert refused.returncode == 2
    assert "--as-written" in refused.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no GPU")
def test_a_graph_without_a_gpu_is_one_line(folder: Path) -> None:
    arguments = ("--rate", "100", "--requests", "10", "--strategies", "full+graph")
    done = loadtest(folder, "make", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "full+graph" in done.stderr and "CUDA" in done.stderr
    [result] = load_test_of(done).results
    assert (result.ending, result.answered) == ("skipped", None) and result.notes


def test_a_recipe_is_served_if_it_is_followed(tmp_path: Path) -> None:
    """Recipes as a search writes them: one for here, and one for another torch."""
    model, calls = torch.nn.Linear(2, 2), [(torch.ones(1, 2),)]
    strategy = replace(parse("full"), arguments={"backend": "eager"})
    plan = planning.plan(strategy, model, calls)
    recipe = Recipe(
        strategy,
        plan=plan,
        run="20261115-0102-net",
        lines=source_lines.lines(strategy, "model", plan),
        environment=environment_here(model),
        model=fingerprint(model),
    )
    recipe.write(tmp_path / "here.toml")
    other = recipe.environment | {"torch": "1.0.0"}
    replace(recipe, environment=other).write(tmp_path / "other.toml")
    here = served_strategy.named(f"recipe:{tmp_path / 'here.toml'}")
    fn = served_strategy.apply(here, model, calls).fn
    assert torch.equal(fn(*calls[0]), model(*calls[0]))
    refused = served_strategy.named(f"recipe:{tmp_path / 'other.toml'}")
    with pytest.raises(NotApplicable, match=r"1\.0\.0"):
        served_strategy.apply(refused, model, calls)


@pytest.mark.slow
def test_a_pack_is_served(folder: Path) -> None:
    pack = ("pack", "served.py:make", "--for", "deploy", "-o", "served-pack", "-q")
    packed = torchproof(*pack, cwd=folder)
    assert packed.returncode == 0, packed.stderr
    load = ("--rate", "50", "--requests", "40", "--strategies", "pack:served-pack")
    done = loadtest(folder, "make", *load)
    assert done.returncode == 0, done.stderr
    [result] = load_test_of(done).results
    assert (result.strategy, result.answered, result.failed) == (
        "pack:served-pack",
        40,
        0,
    )
    assert "torchproof.load" in result.source
    refused = loadtest(folder, "other_model", *load)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(folder: Path) -> None:
    command = [*PROGRAM, "loadtest", "served.py:make", "--rate", "50", "--duration"]
    command += ["600s", "--strategies", "eager", "--format", "json"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines: list[Any] = []
        deadline = time.monotonic() + 120
        while not any(re.search(r"[1-9]\d* of \d+ requests", line) for line in lines):
            assert time.monotonic() < deadline
            lines.append(process.stderr.readline())
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    run = Run.from_json(json.loads(stdout))
    assert run.ending == "interrupted"
    [result] = run.load_test.results
    assert result.ending == "interrupted"
    assert result.answered > 0
    assert result.answered + result.unserved == len(result.requests.arrival_s)
    assert not result.unserved and result.kept_up is not False
    assert len(result.requests.arrival_s) < run.load_test.planned
    assert store.load(run.id, folder / store.RUNS).load_test == run.load_test
