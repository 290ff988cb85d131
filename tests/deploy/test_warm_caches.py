"""Packs of real models: made by the command, loaded by fresh processes, all graphs hit.

Slow: every pack compiles its model with Inductor, in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import torchproof

pytestmark = pytest.mark.slow

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.sin(self.first(x)).relu())


def make():
    return Net(), [(torch.randn(3, 8),)]


def sizes():
    return Net(), [(torch.randn(n, 8),) for n in (3, 5, 7)]
"""

SERVICE = """
import json, sys
import torch, torchproof
from model import Net

pack, train, size = sys.argv[1], sys.argv[2] == "train", int(sys.argv[3])
torch.manual_seed(7)  # other weights than those that were packed
model, x = Net(), torch.randn(size, 8)
with torch.set_grad_enabled(train):
    want = model(x)
    model = torchproof.load(pack, model)
    got = model(x)
if train:
    got.sum().backward()
torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
told = torchproof.status(model)
print(json.dumps({**told.pack, "in_child": sum(c.in_child for c in told.compilations)}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("deploy")
    (found / "model.py").write_text(MODEL)
    (found / "service.py").write_text(SERVICE)
    return found


def packed(folder: Path, name: str, factory: str, *flags: str) -> Path:
    done = torchproof(
        *("pack", f"model.py:{factory}", "--for", "deploy", "-o", name, "-q", *flags),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / name


@pytest.fixture(scope="module")
def pack(folder: Path) -> Path:
    return packed(folder, "pack", "make")


def served(
    pack: Path, cache: Path, mode: str = "eval", size: int = 3, **variables: str
) -> subprocess.Popen[str]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), **variables}
    return subprocess.Popen(
        [sys.executable, "service.py", str(pack), mode, str(size)],
        cwd=pack.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_two_processes_start_warm_at_the_same_time(pack: Path, tmp_path: Path) -> None:
    both = [served(pack, tmp_path / "cache") for _ in range(2)]
    for found in map(told, both):
        assert (found["graphs"], found["of"], found["misses"]) == (1, 1, [])
        assert found["in_child"] == 0  # and nothing was generated


def test_the_manifest_has_no_values_and_says_what_was_proven(pack: Path) -> None:
    manifest = json.loads((pack / "manifest.json").read_text())
    details = manifest["details"]
    assert details["verified"]["graphs"] == details["graphs"] == 1
    assert details["verified"]["numerics"]["verdict"] in ("same", "rounding")
    assert "model" in details["code"]
    names = [*manifest["files"]]
    assert "torchproof.toml" in names
    assert any(name.startswith("caches/fxgraph/") for name in names)
    assert str(pack.parent) not in (pack / "manifest.json").read_text()


def test_another_number_of_threads_is_a_miss_that_is_explained(
    pack: Path, tmp_path: Path
) -> None:
    found = told(served(pack, tmp_path / "cache", OMP_NUM_THREADS="1"))
    missed = found["graphs"] == 0
    if not missed:
        pytest.skip("this torch does not look graphs up by threads")
    assert re.search(r"\bthreads\b.*\b1\b", found["misses"][0])


def test_changed_source_starts_cold_and_right(pack: Path, tmp_path: Path) -> None:
    file = pack.parent / "model.py"
    file.write_text(MODEL.replace("relu()", "tanh()"))
    try:
        found = told(served(pack, tmp_path / "cache"))
    finally:
        file.write_text(MODEL)
    assert found["used"] is False
    assert "code of model" in found["why_not"]


def test_a_training_pack_has_the_backward(folder: Path, tmp_path: Path) -> None:
    pack = packed(folder, "training", "make", "--train")
    found = told(served(pack, tmp_path / "cache", "train"))
    assert (found["graphs"], found["of"], found["misses"]) == (2, 2, [])
    assert found["in_child"] == 0


def test_sizes_that_vary_come_from_the_pack(folder: Path, tmp_path: Path) -> None:
    pack = packed(folder, "sizes", "sizes")
    found = told(served(pack, tmp_path / "cache", size=11))
    assert found["graphs"] == found["of"] >= 2
    assert (found["misses"], found["in_child"]) == ([], 0)
