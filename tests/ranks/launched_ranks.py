"""Starts the programs of this folder on two ranks, each once for all tests."""

from __future__ import annotations

import functools
from pathlib import Path

from torchproof.observe import JoinedRanks, RankOptions, observe_ranks
from torchproof.targets import Options, parse

PROGRAMS = Path(__file__).parent / "programs"


@functools.cache
def observed(program: str, *arguments: str, timeout_s: float = 240) -> JoinedRanks:
    target = parse(str(PROGRAMS / program), arguments)
    options = Options(timeout_s=timeout_s, quiet=True)
    return observe_ranks(target, options, RankOptions(2), lambda text: None)


def line_of(program: str, text: str) -> int:
    lines = (PROGRAMS / program).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
