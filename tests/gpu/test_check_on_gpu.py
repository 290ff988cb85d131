"""The same diagnoses with CUDA tensors, and what only a GPU shows."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


def check(folder: Path, source: str, *flags: str) -> dict[str, Any]:
    (folder / "model.py").write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "torchproof", "check", "model.py:make"]
    done = subprocess.run(
        [
            *command,
            "--effort",
            "quick",
            "--format",
            "json",
            "--fail-on",
            "never",
            *flags,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run: dict[str, Any] = json.loads(done.stdout)
    return run


def codes(run: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted((f["code"], f["line"]) for f in run["findings"])


def test_module_and_calls_are_moved_to_the_gpu(tmp_path: Path) -> None:
    source = """\
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(8, 8)

        def forward(self, x):
            assert x.is_cuda and self.fc.weight.is_cuda
            h = self.fc(x)
            if h.sum() > 0:
                h = h * 2
            return h * h.mean().item()

    def make():
        return Net(), [(torch.randn(4, 8),), (torch.randn(4, 8),), (torch.randn(6, 8),)]
    """
    run = check(tmp_path, source, "--device", "cuda")
    assert run["environment"]["device"] == "cuda"
    assert "NVIDIA" in run["environment"]["gpu"]
    assert {("GB101", 13), ("GB102", 11), ("RC201", 8)} <= set(codes(run))


def test_tensor_from_another_device(tmp_path: Path) -> None:
    source = """\
    import torch

    def make():
        def scale(x):
            return x * 2 + 1
        return scale, [(torch.ones(4, device="cuda"),), (torch.ones(4),)]
    """
    [found] = check(tmp_path, source)["findings"]
    assert (found["code"], found["line"]) == ("RC206", 4)
    assert "CUDA" in found["message"] and "CPU" in found["message"]


def test_reduce_overhead_is_stopped_before_code_generation(tmp_path: Path) -> None:
    source = """\
    import torch

    def make():
        net = torch.nn.Linear(8, 8, device="cuda")
        step = torch.compile(lambda x: net(x).relu(), mode="reduce-overhead")
        def driver(x):
            return step(x).clone()
        return driver, [(torch.randn(4, 8, device="cuda"),) for _ in range(3)]
    """
    run = check(tmp_path, source, "--as-written")
    assert run["findings"] == []
    assert run["counts"]["compiled_calls"] == 3
    assert run["counts"]["graphs"] == 1


def test_training_step_with_autocast(tmp_path: Path) -> None:
    source = """\
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(16, 16)

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.fc(x).float()

    def make():
        return Net(), [(torch.randn(4, 16),)] * 3
    """
    run = check(tmp_path, source, "--device", "cuda", "--train")
    assert run["findings"] == []
    assert run["counts"]["compiled_calls"] == 3
