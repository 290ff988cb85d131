"""Functions taken out of a running program, with stand-ins for what they use."""

import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.frames import frame_candidates

Made = tuple[Callable[..., Any], list[Any]]


def drafts(
    folder: Path, text: str, mark: str, *, name: str = "acme"
) -> list[Candidate]:
    """Of the function that has a mark in it; the program is a module of its own."""
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    line = 1 + next(
        number
        for number, content in enumerate(path.read_text().splitlines())
        if mark in content
    )

    def run() -> None:
        module = types.ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        fn, calls = module.make()
        for call in calls:
            fn(*call)

    try:
        return list(frame_candidates(run, str(path), line))
    finally:
        sys.modules.pop(name, None)


def ran(draft: Candidate) -> list[Any]:
    """What its calls give."""
    names: dict[str, Any] = {"__name__": "draft"}
    exec(compile(draft.source, "draft", "exec"), names)
    fn, calls = names["make"]()
    return [fn(**each) if isinstance(each, dict) else fn(*each) for each in calls]


NESTED = """
import logging
import torch

log = logging.getLogger("acme")
SCALE = 2.5

def grown(x, by=SCALE):
    return x * by

class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 6)
        self.unused = open
    def forward(self, x):
        return {"h": self.fc(x)}

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.steps = 7
        self.elsewhere = 8
    def forward(self, x: torch.Tensor):
        h = self.inner(x)["h"]
        log.info("step %d", self.steps)  # mark
        return grown(h)

def make():
    outer = Outer()
    def call(x):
        return outer(x)
    return call, [(torch.randn(2, 4),), (torch.randn(3, 4),)]
"""


def test_a_function_alone_gets_back_what_its_modules_gave(tmp_path: Path) -> None:
    alone = drafts(tmp_path, NESTED, "# mark")[0]
    assert "Linear" not in alone.source and "elsewhere" not in alone.source
    assert "steps=7" in alone.source and "def grown" in alone.source
    assert [tuple(y.shape) for y in ran(alone)] == [(2, 6), (2, 6)]


def test_then_with_its_modules_then_who_calls_it(tmp_path: Path) -> None:
    _, whole, *outwards = drafts(tmp_path, NESTED, "# mark")
    assert "torch.nn.Linear(4, 6)" in whole.source and "unused" not in whole.source
    assert [tuple(y.shape) for y in ran(whole)] == [(2, 6), (3, 6)]
    assert any("def call" in draft.source for draft in outwards)
    assert all(draft.form == "frame" for draft in outwards)


CALLED = """
import torch
from collections import namedtuple

Pair = namedtuple("Pair", "left right")

def inner(ids, *, scale, mask=None, dtype=torch.float32, **rest):
    return (ids.to(dtype) * scale)[mask]  # mark

def make():
    ids = torch.arange(12).reshape(3, 4).t()
    def call(ids, mask):
        return inner(ids, scale=2, mask=mask, extra=(None, [1.5]))
    return call, [(ids, ids > 4)]
"""


def test_arguments_are_made_again_as_they_were(tmp_path: Path) -> None:
    found = drafts(tmp_path, CALLED, "# mark", name="called")[0]
    names: dict[str, Any] = {}
    exec(found.source, names)
    _, (call,) = names["make"]()
    ids = call["ids"]
    assert (tuple(ids.shape), ids.stride()) == ((4, 3), (1, 4))
    assert ids.dtype == torch.int64 and 0 <= int(ids.min()) <= int(ids.max()) <= 11
    assert call["mask"].dtype == torch.bool and call["dtype"] is torch.float32
    assert (call["scale"], call["extra"]) == (2, (None, [1.5]))


def test_a_place_that_is_not_reached_gives_nothing(tmp_path: Path) -> None:
    text = "def off():\n    return 1  # mark\ndef make(): return len, [('ab',)]\n"
    assert drafts(tmp_path, text, "# mark", name="off") == []


@pytest.mark.parametrize("kind", ["LSTM", "Conv2d", "Embedding", "LayerNorm", "GELU"])
def test_modules_of_torch_are_built_by_their_constructor(
    tmp_path: Path, kind: str
) -> None:
    arguments = {
        "LSTM": "3, 5, batch_first=True",
        "Conv2d": "2, 4, 3, padding=1, bias=False",
        "Embedding": "9, 4, padding_idx=0",
        "LayerNorm": "4, eps=0.01",
        "GELU": "approximate='tanh'",
    }[kind]
    text = f"""
    import torch
    def inner(module):
        return repr(module), module.training  # mark
    def make():
        return inner, [(torch.nn.{kind}({arguments}).eval(),)]
    """
    found = drafts(tmp_path, text, "# mark", name=f"built_{kind}")[0]
    module = getattr(torch.nn, kind)
    expected = repr(eval(f"module({arguments})", {"module": module}))
    assert ran(found) == [(expected, False)]


INDEXED = """
import torch

class Experts(torch.nn.ModuleDict):
    def forward(self, x, which):
        return self[f"expert_{which}"](x)  # here

class Stages(torch.nn.ModuleList):
    def forward(self, x, which):
        return self[which](x)  # there

def make():
    experts = Experts({"expert_0": torch.nn.ReLU(), "expert_1": torch.nn.Sigmoid()})
    stages = Stages([torch.nn.ReLU(), torch.nn.Sigmoid()])
    return lambda x, n: experts(x, n) + stages(x, n), [(torch.ones(2) * 0, 1)]
"""


@pytest.mark.parametrize("mark", ["# here", "# there"])
def test_children_that_are_asked_for_by_index_are_there(
    mark: str, tmp_path: Path
) -> None:
    found = drafts(tmp_path, INDEXED, mark)[0]
    assert [list(given.shape) for given in ran(found)] == [[2]]
    assert "Sigmoid" in found.source
