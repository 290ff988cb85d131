"""Real packs whose calls start without tracing, and what they must not overlook.

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


class Broken(Net):
    def forward(self, x):
        print("tracing ends here")
        return super().forward(x)


def make():
    return Net().eval(), [(torch.randn(3, 8),), (torch.randn(5, 8),)]


def training():
    return Net(), [(torch.randn(3, 8),)]


def broken():
    return Broken().eval(), [(torch.randn(3, 8),)]
"""

SERVICE = """
import json, sys
import torch, torchproof
import model as home

pack, kind = sys.argv[1:3]
torch.manual_seed(7)  # other weights than those that were packed
net, plain = home.Net().train(kind == "train"), home.Net().train(kind == "train")
plain.load_state_dict(net.state_dict())
if kind == "hook":
    for each in (net, plain):
        each.first.register_forward_hook(lambda module, given, found: found * 3)
if kind == "method":
    home.nn.Linear.forward = lambda self, x: x @ self.weight.t()
grad = torch.enable_grad if kind == "train" else torch.no_grad
with grad():
    net = torchproof.load(pack, net)
traced, wrong = {}, []


def ask(name, x=None, grad=grad):
    x = torch.randn(3, 8) if x is None else x
    before = len(torchproof.status(net).compilations)
    with grad():
        found, want = net(x), plain(x)
    if kind == "train":
        for each, answer in ((net, found), (plain, want)):
            each.zero_grad()
            answer.sum().backward()
        for one, other in zip(net.parameters(), plain.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    near = 0.1 if torch.is_autocast_enabled("cpu") else 1e-3
    if not torch.allclose(found.float(), want.float(), rtol=near, atol=near):
        wrong.append(name)
    traced[name] = len(torchproof.status(net).compilations) - before


ask("usual")
if kind == "flips":
    ask("the other size", torch.randn(5, 8))
    ask("a size that is not packed", torch.randn(6, 8))
    for each in (net, plain):
        each.scale = 3.0
    ask("an attribute")
    for each in (net, plain):
        each.scale = 2.0
        each.train()
    ask("training")
    for each in (net, plain):
        each.eval()
    home.FACTOR = 4.0
    ask("a global")
    home.FACTOR = 1.5
    home.squash = torch.sigmoid
    ask("a function")
    home.squash = squash = lambda x: torch.tanh(x)
    with torch.autocast("cpu", torch.bfloat16):
        ask("autocast")
    ask("gradients", grad=torch.enable_grad)
told = torchproof.status(net)
print(json.dumps({**told.pack, "traced": traced, "wrong": wrong,
                  "share": told.compiled_calls / told.calls}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("untraced")
    (found / "model.py").write_text(MODEL)
    (found / "service.py").write_text(SERVICE)
    return found


def packed(folder: Path, factory: str, *flags: str) -> Path:
    done = torchproof(
        *("pack", f"model.py:{factory}", "--for", "deploy", "-o", factory, "-q"),
        *flags,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / factory


@pytest.fixture(scope="module")
def pack(folder: Path) -> Path:
    return packed(folder, "make")


def served(pack: Path, kind: str, cache: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "service.py", str(pack), kind],
        cwd=pack.parent,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["used"] is True and found["wrong"] == []
    return found


def entries_of(pack: Path) -> list[dict[str, str]]:
    manifest = json.loads((pack / "manifest.json").read_text())
    return [call["entry"] for call in manifest["details"]["calls"]]


def test_what_is_packed_is_not_traced_and_all_else_is(
    pack: Path, tmp_path: Path
) -> None:
    found = served(pack, "flips", tmp_path)
    assert found["untraced"] == [0, 1] and found["notes"] == []
    assert (found["graphs"], found["of"], found["misses"]) == (2, 2, [])
    traced = found["traced"]
    # Two sizes were given, so that all sizes have one graph.
    sizes = ["usual", "the other size", "a size that is not packed"]
    assert [name for name in traced if not traced[name]] == sizes
    assert found["share"] == 1.0


@pytest.mark.parametrize(
    ("kind", "why"),
    [("hook", r"\bfirst\b.*\bhooks\b"), ("method", r"torch\.nn\.modules\.linear")],
)
def test_what_guards_overlook_is_traced_with_the_reason(
    pack: Path, tmp_path: Path, kind: str, why: str
) -> None:
    found = served(pack, kind, tmp_path)
    assert found["untraced"] == []
    assert len(found["notes"]) == 2 and re.search(why, found["notes"][0])


def test_a_training_step_is_not_traced(folder: Path, tmp_path: Path) -> None:
    found = served(packed(folder, "training", "--train"), "train", tmp_path)
    assert found["untraced"] == [0] and found["traced"] == {"usual": 0}


def test_a_graph_break_is_told_and_the_pack_is_made(folder: Path) -> None:
    (entry,) = entries_of(packed(folder, "broken"))
    assert entry["file"] is None and "Unsupported" in entry["why_not"]
    assert not (folder / "broken" / "entries").exists()


def test_no_weights_no_folders_and_no_source_are_written(pack: Path) -> None:
    files = {pack / entry["file"] for entry in entries_of(pack)}
    assert len(files) == 1
    assert all(file.stat().st_size < 200_000 for file in files)
    for file in filter(Path.is_file, pack.rglob("*")):
        raw = file.read_bytes()
        assert os.fsencode(pack.parent) not in raw, file
        assert b"squash(x)" not in raw, f"{file} contains source of the model"
