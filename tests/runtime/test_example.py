"""`example` and `min_gain`: a model is tried in a child, and its gain is measured."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from probed import Probed
from torch import nn

import torchproof
from torchproof.runtime import speed_trial
from torchproof.runtime.probe import probe
from torchproof.runtime.speed_trial import SpeedTrial


class Net(nn.Module):
    """Changes a buffer, draws numbers, and takes longer in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.held = (each for each in ())  # a generator cannot be copied or sent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.01)
        return self.norm(self.linear(x + torch.rand(1)))


def everything(model: Net, x: torch.Tensor) -> list[torch.Tensor]:
    tensors = (*model.parameters(), *model.buffers(), x, torch.get_rng_state())
    return [each.clone() for each in (*tensors, model.linear.weight.grad)]


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rounds as a decision needs, instead of ten seconds."""
    monkeypatch.setattr(speed_trial, "_over", lambda elapsed, limit, rounds: rounds > 9)


def slow(gm: Any, inputs: Any) -> Any:
    return lambda *args: (time.sleep(0.03), gm.forward(*args))[1]


def failing(gm: Any, inputs: Any) -> Any:
    raise ValueError("planted")


@pytest.mark.parametrize(
    ("backend", "strategy", "kinds"),
    [
        ("eager", "full", []),
        (slow, "eager", ["gain"]),
        (failing, "full", ["compile error"]),
    ],
)
def test_a_model_that_gains_too_little_stays_eager(
    backend: Any, strategy: str, kinds: list[str], short_trials: None
) -> None:
    """The trial runs on the model itself, and leaves it as it was."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(32, 64)
    model.linear.weight.grad = torch.ones(64, 64)
    before = everything(model, x)
    torchproof.compile(model, backend=backend, example=(x,), min_gain=0.05)
    assert all(map(torch.equal, before, everything(model, x)))
    assert model.linear.bias.grad is None
    status = torchproof.status(model)
    assert status.strategy == strategy, status
    assert [item.kind for item in status.fallbacks] == kinds, status


def test_state_is_restored_where_a_trial_fails() -> None:
    model, x = Net(), torch.ones(32, 64)

    def fails(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        speed_trial.measured(
            lambda m: (model.forward, fails), (x,), {}, owner=model, seconds=1
        )
    assert x.sum() == x.numel() and model.norm.num_batches_tracked == 0


def test_the_threshold_and_the_sign_must_both_be_shown() -> None:
    def of(gain: float, low: float | None) -> SpeedTrial:
        return SpeedTrial(2.0, 1.0, gain, low, 2.0, 50, "copy")

    assert of(0.10, 0.02).pays(0.05)
    assert not of(0.04, 0.02).pays(0.05)
    assert not of(0.10, -0.01).pays(0.05)
    assert not of(0.10, None).pays(0.05)


# -- the trial in a child --------------------------------------------------------------


def tried(model: object, seconds: float = 100) -> str | None:
    """Why the model is not safe to compile; it runs in the child without a compiler."""
    x = torch.ones(2, 4)
    return probe(model, (x,), {}, seconds=seconds)


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("segfault", "SIGSEGV"),
        pytest.param("leave", "3: last words", marks=pytest.mark.slow),
        pytest.param("hang", "4 s", marks=pytest.mark.slow),
    ],
)
def test_a_model_that_ends_the_child_is_not_compiled(
    deed: str, words: str, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    why = tried(Probed(deed, str(note)), 4 if deed == "hang" else 100)
    assert why is not None and words in why
    if deed == "hang":  # what the child has started ends with it
        pid = int(note.read_text())
        assert not psutil.pid_exists(pid) or (
            psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        )


PROGRAM = """
from __future__ import annotations

import functools
import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
import torchproof

if TYPE_CHECKING:
    from nowhere import Batch

WIDTH = 4
runs = pathlib.Path("runs")
runs.write_text(runs.read_text() + "once " if runs.exists() else "once ")
open_file = open("runs")  # cannot be pickled, and no model uses it


@dataclass
class Config:
    width: int = WIDTH


config = Config()


def around(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)
    return call


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(config.width, WIDTH)

    @around
    def forward(self, x: Batch):
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break()
            crash()
        return self.linear(x).sum()


@torch.compiler.disable
def crash():
    import ctypes
    ctypes.string_at(0)


if __name__ == "__main__":
    model = torchproof.compile(Net(), backend="aot_eager", example=(torch.ones(2, 4),))
    status = torchproof.status(model)
    print(status.strategy, *(item.kind for item in status.fallbacks), runs.read_text())
"""


@pytest.mark.slow
def test_a_model_of_the_main_program_is_tried_and_the_program_runs_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "eager probe once \n"
