"""Real packs: built by the command, loaded by fresh processes with empty caches.

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
from collections import namedtuple

import torch
from torch import nn

FACTOR = 1.5
Pair = namedtuple("Pair", "a b")


def squash(x):
    return torch.tanh(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.scale, self.shift = 2.0, True

    def forward(self, x):
        pair = Pair(self.first(x), squash(x).sum())
        found = self.last(pair.a.sin()) * self.scale + pair.b * FACTOR
        return found + 1 if self.shift and self.training is False else found


def make():
    return Net().eval(), [(torch.randn(3, 8),), (torch.randn(5, 8),)]


def training():
    return Net(), [(torch.randn(3, 8),)]

"""

SERVICE = """
import json, sys
import torch, torchproof
import model as home

pack, kind, device = sys.argv[1:]
torch.manual_seed(7)  # other weights than those that were packed
net, plain = (home.Net().to(device).train(kind == "train") for _ in range(2))
plain.load_state_dict(net.state_dict())
if kind == "hook":
    for each in (net, plain):
        each.first.register_forward_hook(lambda module, args, output: output * 3)
grad = torch.enable_grad if kind == "train" else torch.no_grad
with grad():
    net = torchproof.load(pack, net)
traced, wrong = {}, []


def call(name, x=None, grad=grad):
    x = torch.randn(3, 8, device=device) if x is None else x
    before = len(torchproof.status(net).compilations)
    with grad():
        output, expected = net(x), plain(x)
    if kind == "train":
        for each, output_of in ((net, output), (plain, expected)):
            each.zero_grad()
            output_of.sum().backward()
        for one, other in zip(net.parameters(), plain.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    near = 0.1 if torch.is_autocast_enabled("cpu") else 1e-3
    if not torch.allclose(output.float(), expected.float(), rtol=near, atol=near):
        wrong.append(name)
    traced[name] = len(torchproof.status(net).compilations) - before


call("usual")
in_child = sum(each.in_child for each in torchproof.status(net).compilations)
if kind == "changes":
    call("the other size", torch.randn(5, 8))
    call("a size that is not packed", torch.randn(6, 8))
    for each in (net, plain):
        each.scale = 3.0
    call("an attribute")
    for each in (net, plain):
        each.scale = 2.0
        each.train()
    call("training")
    for each in (net, plain):
        each.eval()
    home.FACTOR = 4.0
    call("a global")
    home.FACTOR = 1.5
    home.squash = torch.sigmoid
    call("a function")
    home.squash = lambda x: torch.tanh(x)
    with torch.autocast("cpu", torch.bfloat16):
        call("autocast")
    call("gradients", grad=torch.enable_grad)
status = torchproof.status(net)
print(json.dumps({**status.pack, "traced": traced, "wrong": wrong,
                  "in_child": in_child,
                  "share": status.compiled_calls / status.calls}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "model.py").write_text(MODEL)
    (folder / "service.py").write_text(SERVICE)
    return folder


def build(folder: Path, factory: str, *flags: str, device: str = "cpu") -> Path:
    made = f"{factory}-{device}"
    done = torchproof(
        *("pack", f"model.py:{factory}", "--for", "deploy", "-o", made, "-q"),
        *("--device", device, *flags),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / made


def serve(
    pack: Path, kind: str, cache: Path, device: str = "cpu"
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "service.py", str(pack), kind, device],
        cwd=pack.parent,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert found["wrong"] == []
    return found


def assert_no_weights_folders_or_source(pack: Path) -> None:
    manifest = json.loads((pack / "manifest.json").read_text())
    details = manifest["details"]
    assert details["verified"]["graphs"] == len(details["graphs"]) == 2
    assert details["verified"]["numerics"]["verdict"] in ("same", "rounding")
    assert "model" in details["code"] and "torchproof.toml" in manifest["files"]
    assert any(name.startswith("caches/fxgraph/") for name in manifest["files"])
    (entry,) = {call["entry"]["file"] for call in details["calls"]}
    assert (pack / entry).stat().st_size < 200_000
    for file in filter(Path.is_file, pack.rglob("*")):
        raw = file.read_bytes()
        assert os.fsencode(pack.parent) not in raw, file
        assert b"squash(x)" not in raw, f"{file} contains source of the model"


def test_two_processes_start_warm_from_one_pack(folder: Path, tmp_path: Path) -> None:
    """One meets every change after the start, the other has a hook before it."""
    pack = build(folder, "make")
    assert_no_weights_folders_or_source(pack)
    both = [serve(pack, kind, tmp_path) for kind in ("changes", "hook")]
    changes, hook = map(report, both)
    assert changes["untraced"] == [0, 1] and changes["notes"] == []
    assert hook["untraced"] == [] and len(hook["notes"]) == 2
    assert re.search(r"\bfirst\b.*\bhooks\b", hook["notes"][0])
    assert (changes["graphs"], changes["of"]) == (2, 2)
    (miss,) = changes["misses"]  # the last call has gradients
    assert "--train" in miss
    assert changes["in_child"] == 0  # no code was generated for the packed calls
    traced = changes["traced"]
    # The pack has two sizes, so one graph serves all sizes.
    sizes = ["usual", "the other size", "a size that is not packed"]
    assert [name for name in traced if not traced[name]] == sizes
    assert changes["share"] == 1.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_training_pack_has_the_backward(
    device: str, folder: Path, tmp_path: Path
) -> None:
    pack = build(folder, "training", "--train", device=device)
    found = report(serve(pack, "train", tmp_path, device))
    assert found["used"] is True and found["notes"] == []
    assert (found["graphs"], found["of"], found["misses"]) == (2, 2, [])
    assert found["untraced"] == [0] and found["traced"] == {"usual": 0}
    assert found["in_child"] == 0
