"""`example` and `min_gain`: a model is tried in a child, and its gain is measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
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
from torchproof.runtime.speed_trial import SpeedTrial, measured


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.seen: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x + torch.rand(1)))


def repeated(call: Callable[..., Any], times: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        for _ in range(times - 1):
            call(*args, **kwargs)
        return call(*args, **kwargs)

    return run


def test_a_clear_gain_pays_and_leaves_the_model_alone() -> None:
    model, x = Net(), torch.randn(32, 64)
    model.linear.weight.grad = torch.ones(64, 64)
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), x)]
    chance, made = torch.get_rng_state(), []

    def make(module: nn.Module | None) -> tuple[Any, Any]:
        made.append(module)
        assert module is not None
        return repeated(module.forward, 20), module.forward

    # A busy machine may hide it once: the interval is wide then, nothing is claimed.
    for _ in range(5):
        found = measured(make, (x,), {}, owner=model, seconds=1)
        if found.pays(0.05):
            break
    assert found.gain > 1, found
    assert found.low is not None and found.high is not None
    assert found.low < found.gain < found.high
    assert found.pays(0.05)
    assert not found.pays(1000)
    assert found.where == "copy" and made[0] is not model
    after = [*model.parameters(), *model.buffers(), x]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(model.linear.weight.grad, torch.ones(64, 64))
    assert model.linear.bias.grad is None
    assert torch.equal(torch.get_rng_state(), chance)
    json.dumps(found.to_json())
    assert str(found).startswith("+")


def test_in_place_where_no_copy_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net(), torch.randn(32, 64)
    monkeypatch.setattr(speed_trial, "free_bytes", lambda device: 10)
    before = [t.clone() for t in (*model.parameters(), *model.buffers())]

    def make(module: nn.Module | None) -> tuple[Any, Any]:
        assert module is model
        return model.forward, model.forward

    found = measured(make, (x,), {}, owner=model, seconds=0.3)
    assert found.where == "in place"
    lacks = speed_trial.lack_of_memory(model)
    assert lacks is not None and lacks in found.notes[0]
    after = [*model.parameters(), *model.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_what_fails_is_raised_with_the_state_put_back() -> None:
    model, x = Net(), torch.ones(32, 64)
    model.refuses = (each for each in ())  # a generator cannot be copied

    def fails(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        measured(lambda m: (model.forward, fails), (x,), {}, owner=model, seconds=1)
    assert x.sum() == x.numel()
    assert model.norm.num_batches_tracked == 0


def test_the_threshold_and_the_sign_must_both_be_shown() -> None:
    def of(gain: float, low: float | None) -> SpeedTrial:
        return SpeedTrial(2.0, 1.0, gain, low, 2.0, 50, "copy")

    assert of(0.10, 0.02).pays(0.05)
    assert not of(0.04, 0.02).pays(0.05)
    assert not of(0.10, -0.01).pays(0.05)
    assert not of(0.10, None).pays(0.05)


# -- the border ------------------------------------------------------------------------


def test_a_model_that_gains_too_little_stays_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As many rounds as a decision needs, instead of ten seconds.
    monkeypatch.setattr(speed_trial, "_over", lambda elapsed, limit, rounds: rounds > 9)

    class Local(nn.Module):
        """No child can import it: so it is not tried in one."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            time.sleep(0.01)
            return gm.forward(*args)

        return run

    x = torch.randn(4)
    options: dict[str, Any] = {"example": (x,), "min_gain": 0.05}
    model = torchproof.compile(Local(), backend=backend, **options)
    assert torch.equal(model(x), x + 1)
    status = torchproof.status(model)
    assert status.strategy == "eager", status
    assert [item.kind for item in status.fallbacks] == ["gain"]


# -- the trial in a child --------------------------------------------------------------


def tried(model: object, seconds: float = 100) -> str | None:
    """Why the model is not safe to compile; it runs in the child without a compiler."""
    x = torch.ones(2, 4)
    return probe(model, (x,), {}, compile_arguments={"disable": True}, seconds=seconds)


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
