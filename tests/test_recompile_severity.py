"""A recompile that settles is `low`; one that goes on, or that may, is loud.

Each program has a twin that changes more of the same: another value in each call, or
what has no end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.checking import rules

PROGRAM = """\
import enum

import torch
from torch import nn


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        names = ("legal", "medical", "plain")
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
        self.adapter = "plain"
        self.kept = {}
        self.log = []
        self.flag = False
        self.seen = 0

    def forward(self, x, word=None):
        return self.parts[self.adapter](x)


class Counts(Adapted):
    def forward(self, x):
        self.seen += 1
        return x * (2 if self.seen % 2 else 3)


class Grown(Adapted):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.depth = 0

    def forward(self, x):
        self.depth = min(self.depth + 1, 2)
        for layer in self.layers[: self.depth]:
            x = layer(x)
        return x


class Hooked(Adapted):
    def forward(self, x):
        self.kept["last"] = x
        return x + 1


class Memo(Adapted):
    def forward(self, x):
        self.kept[len(self.kept)] = x
        return x + 1


class Restarts(Adapted):
    def forward(self, x):
        self.log.clear()
        self.log.append(x)
        return x + 1


class Grows(Adapted):
    def forward(self, x):
        self.log.append(x)
        return x + 1


def masked(x, mask=None):
    return x + 1 if mask is None else x * mask


def chosen(x, mode):
    return x * 2 if mode is Mode.FAST else x + 1


def said(x, text):
    return x * len(text.split())


def tagged(x, tag):
    return x * len(tag)


def scaled(x, n):
    return x * n


def picked(x, n):
    return x[:, n] * 2


def X(n=3):
    return torch.ones(n, 4)


def switch(fn, index):
    fn.adapter = ("plain", "legal", "medical", "plain", "legal")[index]


def a_name_of_few():
    return Adapted(), [(X(),)] * 5


def one_name_each():
    return chosen_by, [(X(), n) for n in ("relu", "sin", "cos", "tanh")]


def chosen_by(x, name):
    return getattr(torch, name)(x)


def a_mask_or_none():
    return masked, [(X(),), (X(), X())]


def an_enum():
    return chosen, [(X(), Mode.FAST), (X(), Mode.EXACT), (X(), Mode.FAST)]


def a_text():
    return said, [(X(), t) for t in ("a b", "a b c", "a b c", "a b")]


def a_tag_that_lasts_for_three_calls():
    return tagged, [(X(), "t" * (1 + n // 3)) for n in range(12)]


def a_number():
    return scaled, [(X(), n) for n in (4, 5, 6, 7)]


def a_number_that_indexes():
    return picked, [(X(), n) for n in (3, 2, 2, 2, 2, 1, 1)]


def a_batch_of_one():
    return scaled, [(X(n), 2) for n in (4, 1, 4)]


def sizes_of_few_kinds():
    return scaled, [(X(n), 2) for n in (4, 5, 6, 9)]


def a_dtype():
    dtypes = (torch.float32, torch.float64, torch.float32)
    return scaled, [(X().to(dtype), 2) for dtype in dtypes]


def a_gradient():
    return scaled, [(X(), 2), (X().requires_grad_(), 2)]


def a_counter():
    return Counts(), [(X(),)] * 4


def a_depth_of_layers():
    return Grown(), [(X(),)] * 4


def a_key():
    return Hooked(), [(X(),)] * 2


def a_key_each():
    return Memo(), [(X(),)] * 2


def a_list_that_is_emptied():
    return Restarts(), [(X(),)] * 2


def a_list_that_grows():
    return Grows(), [(X(),)] * 2
"""
EXPECTED = {
    "a_name_of_few": ("RC213", "low"),
    "one_name_each": ("RC210", "high"),
    "a_mask_or_none": ("RC211", "low"),
    "an_enum": ("RC215", "low"),
    "a_text": ("RC210", "medium"),
    "a_tag_that_lasts_for_three_calls": ("RC210", "medium"),
    "a_number": ("RC210", "low"),
    "a_number_that_indexes": ("RC210", "medium"),
    "a_batch_of_one": ("RC202", "low"),
    "sizes_of_few_kinds": ("RC201", "low"),
    "a_dtype": ("RC205", "low"),
    "a_gradient": ("RC208", "low"),
    "a_counter": ("RC213", "high"),
    "a_depth_of_layers": ("RC213", "low"),
    "a_key": ("RC212", "low"),
    "a_key_each": ("RC212", "medium"),
    "a_list_that_is_emptied": ("RC212", "low"),
    "a_list_that_grows": ("RC212", "medium"),
}


def test_what_settles_is_low(tmp_path: Path, observe_all: Any) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    before = tmp_path / "switched.py"
    before.write_text(PROGRAM.replace("def switch(", "def before_call("))
    targets = [
        (f"{before if name == 'a_name_of_few' else file}:{name}", {})
        for name in EXPECTED
    ]
    found = {
        name: {(f.code, f.severity) for f in rules.check(seen) if f.kind == "recompile"}
        for name, seen in zip(EXPECTED, observe_all(targets), strict=True)
    }
    assert found == {name: {each} for name, each in EXPECTED.items()}
