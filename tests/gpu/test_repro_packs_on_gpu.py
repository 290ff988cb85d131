"""Failures that only a GPU shows, packed and run again in a clean process."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from torchproof.runtime.pack_format.contents import open_pack

pytestmark = pytest.mark.gpu

KEPT = """
import torch

class Collector:
    # gathers the outputs of an encoder
    def __init__(self):
        self.encode = torch.compile(self.private_encoder, mode="reduce-overhead")
        self.weight = torch.randn(8, 8, device="cuda")

    def private_encoder(self, batch):
        hidden = torch.relu(batch @ self.weight)
        return hidden + hidden.mean()

    def __call__(self, batches):
        with torch.no_grad():
            collected = [self.encode(batch) for batch in batches]
            return torch.stack(collected).sum((1, 2))

def make():
    batches = [torch.full((8, 8), i + 1.0, device="cuda") for i in range(4)]
    return Collector(), [(batches,)]
"""

SKIPPED = """
import torch
from torch import nn

class PrivateCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, batch, total):
        hidden = torch.relu(self.inner(batch))
        total.add_(hidden.sum())
        return hidden * 2

def make():
    model = PrivateCounter().cuda().requires_grad_(False)
    calls = [(torch.randn(4, 16, device="cuda"), torch.zeros((), device="cuda"))]
    return model, calls * 4
"""

CASES = {
    "kept": (KEPT, "CG30", ["--as-written"]),
    "skipped": (SKIPPED, "CG3", ["--compile", "mode=reduce-overhead"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_failure_of_cuda_graphs_is_packed(name: str, tmp_path: Path) -> None:
    program, code, flags = CASES[name]
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "torchproof", "pack", "program.py:make"]
    command += ["--for", "repro", "--effort", "full", "--select", code, "-o"]
    done = subprocess.run(
        [*command, "pack.tar.gz", "--budget", "60s", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    manifest = open_pack(tmp_path / "pack.tar.gz").manifest
    print(name, manifest.details["form"], manifest.details["size"])
    with tarfile.open(tmp_path / "pack.tar.gz") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    [repro] = (tmp_path / "out").rglob("repro.py")
    again = subprocess.run(
        [sys.executable, "-I", repro], cwd=repro.parent, capture_output=True, text=True
    )
    assert again.returncode == 1, again.stdout[-2000:] + again.stderr[-2000:]
    assert again.stdout.splitlines()[-1].startswith("FAILS AS STATED: ")
