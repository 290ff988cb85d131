"""State that steps read: every mechanism, and random programs, compared with eager.

The tables in mechanisms/ have one row for each way to read state, those that were stale
once among them. benchmarks/fuzz_state.py runs random programs at length.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import state_limits
import torch
from state_catalogue import holders, mechanisms, placements
from state_programs import Change, Program, generate, plain, unchanged
from state_runs import SUBJECTS, Subject, compare
from state_search import search
from state_shrinking import script, shrink

GRAPH, COMPILE = SUBJECTS["graph"], SUBJECTS["compile"]


class Forgetful(Subject):
    """Answers each shape as it did the first time: what a stale replay does."""

    def wrap(self, step: Any) -> Callable[..., Any]:
        known: dict[Any, torch.Tensor] = {}

        def answer(x: torch.Tensor, **keywords: float) -> torch.Tensor:
            key = x.shape, *keywords.values()
            if key not in known:
                known[key] = step(x, **keywords)
            return known[key]

        return answer


FORGETFUL = Forgetful("forgetful", "", lambda wrapped: {})
EAGER = Subject("eager", "step", lambda wrapped: {})


def differs(program: Program, subject: Subject = FORGETFUL) -> bool:
    return compare(program, subject).difference is not None


# -- the programs themselves -----------------------------------------------------------


@pytest.mark.slow
def test_each_mechanism_would_show_a_stale_answer() -> None:
    # Those that vary differ by the numbers that they draw.
    names = [name for name, each in mechanisms().items() if not each.varies]
    assert [name for name in names if not differs(plain(name))] == []
    assert [name for name in mechanisms() if differs(plain(name), EAGER)] == []


def test_programs_use_every_mechanism_holder_and_placement() -> None:
    readers = [each for seed in range(5000) for each in generate(seed).readers]
    assert {each.mechanism for each in readers} == {*mechanisms()}
    assert {each.holder for each in readers} == {*holders()}
    assert {each.placement for each in readers} == {*placements()}


def test_a_stale_answer_is_found_and_made_small() -> None:
    programs = (each for each in map(generate, range(50)) if len(each.readers) > 2)
    small = shrink(next(filter(differs, programs)), differs)
    assert differs(small)
    assert len(small.readers) == 1 and len(small.history) <= 4
    assert any(isinstance(event, Change) for event in small.history)


@pytest.mark.slow
def test_a_program_that_differs_runs_as_a_script(tmp_path: Path) -> None:
    path = tmp_path / "found.py"
    program = plain("attribute of a module")
    path.write_text(script(program, "lambda x: step(x) + 1", "an example"))
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True
    )
    eager, given = (
        [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(name)]
        for name in ("eager", "given")
    )
    assert len(eager) == len(given) > 0
    assert all(one != other for one, other in zip(eager, given, strict=True))


# -- torchproof ------------------------------------------------------------------------


def assert_as_limits_say(name: str, subject: Subject) -> None:
    difference = compare(plain(name), subject).difference
    if name not in state_limits.of(subject):
        assert difference is None, difference
    elif state_limits.is_exact(subject):
        assert difference is not None, "no limit any more: take it out of limits.toml"


@pytest.mark.parametrize("name", mechanisms())
def test_graph_sees_every_change(name: str) -> None:
    assert_as_limits_say(name, GRAPH)


# What random programs found once for `compile`.
FOUND = ("attribute of a subclass of dict", "module __getattr__", "sorted with a key")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FOUND else pytest.param(name, marks=pytest.mark.slow)
        for name in mechanisms()
    ],
)
def test_compile_sees_every_change(name: str) -> None:
    assert_as_limits_say(name, COMPILE)


@pytest.mark.slow
def test_a_step_whose_state_stays_is_replayed_or_refused() -> None:
    """So that to record nothing at all is no way to pass."""
    refused = set()
    for name in mechanisms():
        facts = compare(unchanged(name), GRAPH).facts
        if facts["replays"] < facts["calls"] - 1 or facts["recordings"] > 1:
            assert facts["stops"], f"{name} is not replayed, and nothing says why"
            refused.add(name)
    assert refused == {*state_limits.table()["not replayed"]}


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("graph", range(4)),
        ("compile", range(2)),
        *(
            pytest.param(name, range(1000, 1002), marks=pytest.mark.slow)
            for name in SUBJECTS
            if name != "torch.compile"
        ),
    ],
)
def test_nothing_is_stale_in_random_programs(name: str, seeds: range) -> None:
    report = search(name, seeds)
    assert not report.failures, report.failures[0].script
