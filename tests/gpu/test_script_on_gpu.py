"""A training script on CUDA: its steps in turn give what runs of their own give."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from commands import torchproof

pytestmark = pytest.mark.gpu

# Small layers, many of them: eager waits for launches, CUDA graphs do not.
TRAINING = """\
    import sys, time, torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU())
              for _ in range(12)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    step = torch.compile(model, mode=sys.argv[1])
    data = [torch.randn(64, 256, device="cuda") for _ in range(4)]
    marks = []
    for number in range(1500):
        step(data[number % 4]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 100 == 99:
            torch.cuda.synchronize()
            marks.append(time.perf_counter())
    spans = sorted(b - a for a, b in zip(marks[2:], marks[3:]))
    print(f"{spans[len(spans) // 2] * 10:.4f} ms a step")
    """


def alone(folder: Path, mode: str, *, off: bool) -> float:
    """Milliseconds of a step, in a run that nobody watches."""
    done = subprocess.run(
        [sys.executable, "training.py", mode],
        cwd=folder,
        env={**os.environ, "TORCH_COMPILE_DISABLE": str(int(off))},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = re.search(r"([\d.]+) ms a step", done.stdout)
    assert found is not None
    return float(found[1])


@pytest.mark.alone
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_steps_in_turn_agree_with_runs_of_their_own(mode: str, tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(textwrap.dedent(TRAINING))
    done = torchproof(
        "bench", "training.py", "--format", "json", "--", mode, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    eager, compiled = run["measurements"]
    assert run["environment"]["device"] == "cuda"
    eager_ms, compiled_ms = (alone(tmp_path, mode, off=off) for off in (True, False))
    print(mode, eager["median_ms"], eager_ms, compiled["median_ms"], compiled_ms)
    assert eager["median_ms"] == pytest.approx(eager_ms, rel=0.15)
    assert compiled["median_ms"] == pytest.approx(compiled_ms, rel=0.15)
