"""A deploy pack on a GPU: calls start without tracing, and compute what eager does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import torchproof

pytestmark = pytest.mark.gpu

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 32)

    def forward(self, x):
        return self.head(self.layers(x)).softmax(-1)


def eval():
    return Net().eval(), [(torch.randn(2, 16, 64),)]


def train():
    return Net(), [(torch.randn(2, 16, 64),)]
"""

SERVICE = """
import json, sys
import torch, torchproof
from model import Net

train = sys.argv[2] == "train"
torch.manual_seed(7)  # other weights than those that were packed
net, plain = Net().cuda().train(train), Net().cuda().train(train)
plain.load_state_dict(net.state_dict())
with torch.set_grad_enabled(train):
    net = torchproof.load(sys.argv[1], net)
    x = torch.randn(2, 16, 64, device="cuda")
    found, want = net(x), plain(x)
    torch.testing.assert_close(found, want, rtol=1e-2, atol=1e-3)
    told = torchproof.status(net)
    compilations = len(told.compilations)
    if train:
        for answer in (found, want):
            answer.square().sum().backward()
        for one, other in zip(net.parameters(), plain.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=1e-3)
    wider = torch.randn(3, 16, 64, device="cuda")  # which the guards refuse
    torch.testing.assert_close(net(wider), plain(wider), rtol=1e-2, atol=1e-3)
print(json.dumps({**told.pack, "compilations": compilations}))
"""


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_pack_starts_without_tracing(tmp_path: Path, mode: str) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "service.py").write_text(SERVICE)
    flags = ["--train"] if mode == "train" else []
    done = torchproof(
        *("pack", f"model.py:{mode}", "--for", "deploy", "--device", "cuda"),
        *("-o", "pack", "-q", *flags),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = served(tmp_path, mode)
    assert found["used"] is True and found["notes"] == []
    assert found["untraced"] == [0] and found["compilations"] == 0
    assert found["graphs"] == found["of"] > 0 and found["misses"] == []


def served(folder: Path, mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "service.py", "pack", mode],
        cwd=folder,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
