"""A function counts as skipped only if torch skips it, and compiles nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.checking import rules

PROGRAM = """\
import logging

import torch

log = logging.getLogger("x")


class Net(torch.nn.Module):
    def forward(self, x):
        x = x.sin()
        first = [v.nonzero() for v in x]  # comprehension of a list
        rest = [torch.unique(t) for t in first]  # comprehension that runs alone
        return x.relu() + len(rest)


def logs(x):
    y = x.sin()
    log.info("mean %s", y.mean())  # logging
    return y.cos()


def loops(x):
    y = x.sin()
    for i in range(2):
        print(i)  # loop
        y = y + 1
    return y.cos()


def calls(x):
    y = x.sin()
    return loops(y).cos()


def comprehensions():
    return Net(), [(torch.ones(2, 4),)]


def logging_call():
    return logs, [(torch.ones(4),)]


def loop():
    return loops, [(torch.ones(4),)]


def called_loop():
    return calls, [(torch.ones(4),)]
"""
CASES = {
    "comprehensions": {
        ("graph_break", "# comprehension of a list", "Net.forward"),
        ("graph_break", "# comprehension that runs alone", "Net.forward"),
    },
    "logging_call": {("graph_break", "# logging", "logs")},
    "loop": {("skipped_frame", "# loop", "loops")},
    "called_loop": {("skipped_frame", "# loop", "loops")},
}


def test_only_what_torch_skips_is_a_skipped_frame(
    observe_all: Any, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    breaks = ("graph_break", "skipped_frame")
    lines = PROGRAM.splitlines()
    runs = observe_all([(f"{file}:{name}", {}) for name in CASES])
    for (name, case), run in zip(CASES.items(), runs, strict=True):
        found = [f for f in rules.check(run) if f.kind in breaks]
        expected = {
            (
                kind,
                next(n for n, x in enumerate(lines, 1) if x.endswith(text)),
                function,
            )
            for kind, text, function in case
        }
        assert {(f.kind, f.line, f.function) for f in found} == expected, name
