"""State that steps read: mechanisms and random programs, compared with eager.

The tables in mechanisms/ have one row for each way to read state, those that were stale
once among them. benchmarks/fuzz_state.py runs random programs at length.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import state_limits
import torch
from state_catalogue import found_once, holders, mechanisms, placements
from state_programs import Call, Change, Program, generate, plain, unchanged
from state_runs import SUBJECTS, Subject, compare
from state_search import search
from state_shrinking import shrink

from torchproof.runtime.cudagraph import ladder

GRAPH, COMPILE = SUBJECTS["graph"], SUBJECTS["compile"]
# Always tested: what was stale once, what the table of planted defects names, and every
# eighth row, of which half are slow tests.
NAMED = (
    *("strides of the argument", "hook of the model", "global", "closure cell", "dict"),
    *("__bases__", "switch of cuDNN", "training with an optimizer of torch"),
    # A trial run is undone, or not made.
    *("counter", "log of calls", "counter in a cell", "list iterator that is consumed"),
    *("generator of torch", "buffer that the step replaces"),
)
QUICK = {*found_once(), *NAMED, *[*mechanisms()][::16]}
ALWAYS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in sorted({*QUICK, *[*mechanisms()][8::16]})
]
SAMPLE = 40  # of the others, at random


class Forgetful(Subject):
    """Answers each shape as it did the first time: what a stale replay does."""

    def wrap(self, step: Any) -> Callable[..., Any]:
        answers: dict[Any, torch.Tensor] = {}

        def answer(x: torch.Tensor, **keywords: float) -> torch.Tensor:
            key = x.shape, *keywords.values()
            if key not in answers:
                answers[key] = step(x, **keywords)
            return answers[key]

        return answer


FORGETFUL = Forgetful("forgetful", "", lambda wrapped: {})
EAGER = Subject("eager", "step", lambda wrapped: {})


def differs(program: Program, subject: Subject = FORGETFUL) -> bool:
    return compare(program, subject).difference is not None


# -- the programs themselves -----------------------------------------------------------


def test_programs_use_every_mechanism_holder_and_placement() -> None:
    left = {*mechanisms(), *holders(), *placements()}
    for seed in range(5000):
        for each in generate(seed).readers:
            left -= {each.mechanism, each.holder, each.placement}
        if not left:
            return
    raise AssertionError(left)


def test_a_stale_answer_is_found_and_made_small() -> None:
    programs = (each for each in map(generate, range(50)) if len(each.readers) > 2)
    small = shrink(next(filter(differs, programs)), differs)
    assert differs(small)
    assert len(small.readers) == 1 and len(small.history) <= 4
    assert any(isinstance(event, Change) for event in small.history)


# -- torchproof ------------------------------------------------------------------------


def assert_as_limits_say(name: str, subject: Subject) -> None:
    difference = compare(plain(name), subject).difference
    if name not in state_limits.of(subject):
        assert difference is None, f"{name}: {difference}"
    elif state_limits.is_exact(subject):
        assert difference is not None, f"{name}: take it out of limits.toml"


@pytest.fixture
def without_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is refused stays eager: compiling it takes most of the time."""
    stays = ladder.Choice(None, None)
    monkeypatch.setattr(ladder, "choose", lambda *arguments: stays)


@pytest.mark.parametrize("name", ALWAYS)
def test_graph_sees_every_change(name: str, without_ladder: None) -> None:
    assert_as_limits_say(name, GRAPH)


def test_what_a_replay_would_not_repeat_is_not_recorded(without_ladder: None) -> None:
    for name in state_limits.table()["not replayed"]:
        facts = compare(unchanged(name, calls=3), GRAPH).facts
        assert facts["stops"] and facts["replays"] < 2, (name, facts)


@pytest.mark.parametrize(
    ("name", "form", "replays"),
    [
        ("training with an optimizer of the user", "partial", 1),
        ("list iterator that is consumed", "callable", 0),
    ],
)
def test_graph_of_compiled_step_takes_effect_once(
    name: str, form: str, replays: int
) -> None:
    """Wrappers of torch.compile hide what a trial run could change."""
    program = replace(plain(name), form=form, history=(Call(), Call()))
    outcome = compare(program, SUBJECTS["graph of torch.compile"])
    assert outcome.difference is None
    assert outcome.facts["replays"] == replays


# What random programs found once for `compile`, and classes of a model that change.
OF_COMPILE = (
    *("attribute of a subclass of dict", "module __getattr__", "sorted with a key"),
    *("forward of the class", "__class__ of the model", "__code__ of a method"),
    *("helper method of a module", "class attribute of a module", "default device"),
)


@pytest.mark.parametrize("name", OF_COMPILE)
def test_compile_sees_every_change(name: str) -> None:
    assert_as_limits_say(name, COMPILE)


@pytest.mark.parametrize(
    ("name", "seeds"), [("graph", range(4)), ("compile", range(1))]
)
def test_nothing_is_stale_in_random_programs(name: str, seeds: range) -> None:
    report = search(name, seeds)
    assert not report.failures, report.failures[0].script


@pytest.mark.slow
@pytest.mark.parametrize("subject", [GRAPH, COMPILE], ids=["graph", "compile"])
def test_limits_still_exist(subject: Subject) -> None:
    for name in sorted(state_limits.of(subject)):
        assert_as_limits_say(name, subject)


@pytest.mark.slow
def test_a_random_sample_of_the_mechanisms() -> None:
    """Other ones each time; a failure names its mechanism."""
    names = random.Random().sample([*mechanisms()], SAMPLE)
    not_replayed = state_limits.table()["not replayed"]
    for name in names:
        assert mechanisms()[name].varies or differs(plain(name)), f"{name} is not read"
        assert not differs(plain(name), EAGER), f"{name} is not repeatable"
        for subject in (GRAPH, COMPILE):
            assert_as_limits_say(name, subject)
        # To record nothing at all is no way to pass.
        facts = compare(unchanged(name), GRAPH).facts
        replays = facts["replays"] >= facts["calls"] - 1 and facts["recordings"] <= 1
        assert replays or facts["stops"], f"{name} is not replayed, without a reason"
        assert replays is (name not in not_replayed), name
