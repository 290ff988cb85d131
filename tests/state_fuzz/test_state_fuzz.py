"""State that steps read: random programs and changes, compared with eager.

A short run of what benchmarks/fuzz_state.py runs at length.
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

FUZZED = [name for name in SUBJECTS if name != "torch.compile"]
LIMITED = state_limits.table()
REFUSED = set(LIMITED["not replayed"])


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


def fails(program: Program, subject: Subject = FORGETFUL) -> bool:
    return compare(program, subject).difference is not None


# -- the programs themselves -----------------------------------------------------------


@pytest.mark.slow
def test_each_mechanism_shows_a_stale_answer() -> None:
    unseen = [name for name in mechanisms() if not fails(plain(name))]
    # These differ by the numbers they draw, or by what they leave behind.
    assert unseen == [name for name in unseen if mechanisms()[name].varies]


@pytest.mark.slow
def test_programs_answer_the_same_each_time_in_eager() -> None:
    programs = [*map(plain, mechanisms()), *map(generate, range(100))]
    differing = [each.names for each in programs if fails(each, EAGER)]
    assert not differing


def test_programs_use_every_mechanism_holder_and_placement() -> None:
    readers = [each for seed in range(5000) for each in generate(seed).readers]
    assert {each.mechanism for each in readers} == {*mechanisms()}
    assert {each.holder for each in readers} == {*holders()}
    assert {each.placement for each in readers} == {*placements()}


def test_a_stale_answer_is_found_and_made_small() -> None:
    found = next(p for p in map(generate, range(50)) if len(p.readers) > 2 and fails(p))
    small = shrink(found, fails)
    assert fails(small)
    assert len(small.readers) == 1 and len(small.history) <= 4
    assert any(isinstance(event, Change) for event in small.history)


@pytest.mark.slow
def test_a_program_that_was_found_runs_as_a_script(tmp_path: Path) -> None:
    program = plain("attribute of a module")
    path = tmp_path / "found.py"
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


@pytest.mark.parametrize(
    ("name", "count", "fast"),
    [
        ("graph", 4, "replays"),
        pytest.param("graph", 20, "replays", marks=pytest.mark.slow),
        ("compile", 3, "compiled"),
        pytest.param("compile", 6, "compiled", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_stale_in_random_programs(name: str, count: int, fast: str) -> None:
    report = search(name, range(count))
    assert not report.failures, report.failures[0].script
    assert report.programs == count
    assert report.counts[fast] > report.calls / 2, report


# What this fuzzer found once; the others are slow tests of their mechanism.
FOUND = {
    "graph": (
        *("cached_property", "getattr with a formatted name", "annotations"),
        *("name of a class", "import_module in the step", "sys.modules"),
        *("decimal context", "argument of a partial", "WeakValueDictionary"),
        *("signature", "dropout", "strides of the argument"),
        *("as_strided of the argument", "learning rate of a scheduler"),
        *("errors of numpy", "precision of a backend"),
    ),
    "compile": ("attribute of a subclass of dict", "module __getattr__"),
}


@pytest.mark.parametrize(
    ("subject", "name"),
    [(subject, name) for subject, names in FOUND.items() for name in names],
)
def test_what_was_found_once(subject: str, name: str) -> None:
    assert compare(plain(name), SUBJECTS[subject]).difference is None


@pytest.mark.slow
@pytest.mark.parametrize("name", [*mechanisms()])
@pytest.mark.parametrize("subject", ["graph", "compile"])
def test_each_mechanism_alone(subject: str, name: str) -> None:
    limited = name in state_limits.of(SUBJECTS[subject])
    difference = compare(plain(name), SUBJECTS[subject]).difference
    if limited:
        assert difference is not None, "no limit any more: take it out of limits.toml"
    else:
        assert difference is None, difference


@pytest.mark.slow
def test_a_step_whose_state_stays_is_replayed_or_refused() -> None:
    """So that to record nothing at all is no way to pass."""
    refused = set()
    for name in mechanisms():
        facts = compare(unchanged(name), SUBJECTS["graph"]).facts
        if facts["replays"] < facts["calls"] - 1 or facts["recordings"] > 1:
            assert facts["stops"], f"{name} is not replayed, and nothing says why"
            refused.add(name)
    assert refused == REFUSED


@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZED)
def test_nothing_is_stale_in_every_way_to_compile(name: str) -> None:
    report = search(name, range(1000, 1012))
    assert not report.failures, report.failures[0].script
