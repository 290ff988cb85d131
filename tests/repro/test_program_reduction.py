"""Reduction of programs; here the text alone decides what fails."""

import ast
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs import program_reducer
from torchproof.packs.repro.programs.program_reducer import reduce_program
from torchproof.packs.repro.programs.scopes import Globals

PROGRAM = """
import math
import torch
import logging
from torch import nn
from torch.nn import functional as acme_functional

secret_log = logging.getLogger("acme")
ACME_SCALE = 3.25

class AcmeBlock(nn.Module):
    def __init__(self, acme_width, depth=2):
        super().__init__()
        self.acme_norm = nn.LayerNorm(acme_width)
        self.layers = nn.ModuleList(
            [nn.Linear(acme_width, acme_width) for _ in range(depth)]
        )

    def forward(self, acme_x, mask=None):
        for layer in self.layers:
            acme_x = layer(acme_x) * ACME_SCALE
        if mask is not None:
            acme_x = acme_x.masked_fill(mask, 0.0)
        return self.acme_norm(acme_functional.relu(acme_x))

class AcmeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = AcmeBlock(64)
        self.acme_head = nn.Linear(64, 10)

    def forward(self, acme_x):
        hidden = self.block(acme_x)
        secret_log.info("acme step %d", 1)
        peak = hidden.max().item()
        if peak > math.pi:
            hidden = hidden / peak
        return self.acme_head(hidden)

def make():
    torch.manual_seed(0)
    model = AcmeModel()
    calls = [(torch.randn(4, 64),) for _ in range(12)]
    return model, calls
"""


def draft(source: str = PROGRAM) -> Candidate:
    return Candidate("program", source, "", 0)


def names_are_whole(source: str) -> bool:
    return not Globals(ast.parse(source)).undefined()


def reads_back(candidate: Candidate) -> bool:
    assert names_are_whole(candidate.source), candidate.source
    last = next(
        node.body[-1]
        for node in ast.parse(candidate.source).body
        if isinstance(node, ast.FunctionDef) and node.name == "make"
    )
    return ".item()" in candidate.source and isinstance(last, ast.Return)


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def lines(source: str) -> int:
    return len([line for line in source.splitlines() if line.strip()])


def test_a_program_of_forty_lines_ends_at_less_than_a_quarter() -> None:
    found = reduce_program(draft(), reads_back, soon())
    assert ".item()" in found.source
    assert lines(found.source) * 4 <= lines(PROGRAM)


def test_nothing_that_fails_otherwise_is_kept() -> None:
    found = reduce_program(draft(), lambda candidate: False, soon(1))
    assert found.source == PROGRAM


def test_end_of_the_time_keeps_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Candidate] = []

    def fails(candidate: Candidate) -> bool:
        tried.append(candidate)
        return reads_back(candidate)

    clock = SimpleNamespace(monotonic=lambda: float(len(tried)))
    monkeypatch.setattr(program_reducer, "time", clock)
    found = reduce_program(draft(), fails, 20.0)
    assert reads_back(found) and lines(found.source) < lines(PROGRAM)
    assert len(tried) < 60  # those that had begun
    assert reduce_program(draft(), fails, 0.0).source == PROGRAM


@pytest.mark.parametrize(
    ("before", "gone"),
    [
        ("def f(x, y): return x + y\ndef make(): return f, [(1, 2)]", "+"),
        ("K = 5\ndef make(): return len, [(K,)]", "K"),
    ],
)
def test_what_is_not_needed_goes(before: str, gone: str) -> None:
    def fails(candidate: Candidate) -> bool:
        return "def make" in candidate.source and runs(candidate.source)

    assert gone not in reduce_program(draft(before), fails, soon()).source


def test_a_part_becomes_the_whole() -> None:
    source = (
        "class A:\n    def __call__(self, x): return x.item()\n"
        "class B:\n    a = A()\n    def __call__(self, x): return self.a(x)\n"
        "def make(): return B(), [(1,)]\n"
    )
    found = reduce_program(draft(source), reads_back, soon())
    assert "class A" in found.source and "class B" not in found.source


def runs(source: str) -> bool:
    names: dict[str, Callable[[], tuple[object, list[tuple[object, ...]]]]] = {}
    try:
        exec(compile(source, "draft", "exec"), names)
        fn, calls = names["make"]()
    except Exception:
        return False
    return callable(fn) and isinstance(calls, list)


def test_names_are_renamed_in_their_scope_alone() -> None:
    tree = ast.parse(
        "x = 1\ndef f(y):\n    global x\n    x = [x for x in y]\n"
        "    return lambda y=y: y\n"
    )
    Globals(tree).rename({"x": "a", "f": "b", "y": "c"})
    assert ast.unparse(tree) == (
        "a = 1\n\ndef b(y):\n    global a\n    a = [x for x in y]\n"
        "    return lambda y=y: y"
    )
