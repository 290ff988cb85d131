"""Calls that bypass compiled code are counted for each module and line, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.checking import rules

PROGRAM = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x):
        return self.layer(x)

    def encode(self, x):
        return self.layer(x) + 1

    def nested(self, x):
        y = self.inner.encode(x)  # a method of another compiled module
        return self(y) + self.encode(y)


class Around(Net):
    def forward(self, x):
        return self.inner(x)


def compiled(*modules):
    return [torch.compile(module, backend="eager") for module in modules]


def make(*lines):
    def driver(x):
        for line in lines:
            line(x)
        return x
    return driver, [(torch.ones(2, 4),)]


def repeat(count, call):
    return lambda x: [call(x) for _ in range(count)]


def methods():
    first, second = compiled(Net(), Net())
    return make(
        first,
        second,
        repeat(2, lambda x: first.encode(x)),  # first
        repeat(5, lambda x: second.encode(x)),  # second
    )


def originals():
    one, other = Net(), Net()
    compiled(other)
    [first] = compiled(one)
    return make(
        first,
        repeat(2, lambda x: one(x)),  # one
        repeat(3, lambda x: other(x)),  # other
        repeat(1, lambda x: one(x)),  # one again
    )


def nested_methods():
    [inner] = compiled(Net())
    [outer] = compiled(Net(inner))
    return make(inner, outer, repeat(3, lambda x: outer.nested(x)))  # outer


def nested_originals():
    inner = Net()
    outer = Around(inner)
    return make(*compiled(inner, outer), repeat(3, lambda x: outer(x)))  # outer


def used():
    [net] = compiled(Net())
    return make(net)
"""
CASES = {
    "methods": {("NC802", "# first", 2, "high"), ("NC802", "# second", 5, "high")},
    "originals": {
        ("NC803", "# one", 2, "medium"),
        ("NC803", "# other", 3, "high"),  # the compiled one is never called
        ("NC803", "# one again", 1, "medium"),
    },
    "nested_methods": {("NC802", "outer.nested(x)))  # outer", 3, "high")},
    "nested_originals": {("NC803", "outer(x)))  # outer", 3, "medium")},
    "used": set(),
}


def test_bypasses_are_counted_for_each_module_and_line(
    observe_all: Any, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    lines = PROGRAM.splitlines()
    runs = observe_all([(f"{file}:{name}", {"as_written": True}) for name in CASES])
    for (name, case), run in zip(CASES.items(), runs, strict=True):
        found = [f for f in rules.check(run) if f.kind == "no_op"]
        expected = {
            (code, next(n for n, x in enumerate(lines, 1) if x.endswith(text)), *rest)
            for code, text, *rest in case
        }
        assert {(f.code, f.line, f.count, f.severity) for f in found} == expected, name
