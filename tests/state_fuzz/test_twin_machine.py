"""Sequences of calls, changes and copies, against a twin in eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from twin_machine import COPIES, FORWARDS, HOOKS, PLACES, REFUSED, Call, TwinMachine

# -- at random -------------------------------------------------------------------------


class WithInductor(TwinMachine):
    rounding = 20

    def arguments(self, way: str) -> dict[str, Any]:
        # Otherwise compiled code draws other random numbers.
        return {"options": {"fallback_random": True}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "examples", "steps"), [(TwinMachine, 6, 12), (WithInductor, 2, 8)]
)
def test_models_do_what_their_twins_do(
    machine: type[TwinMachine], examples: int, steps: int
) -> None:
    machine.counts = Counter()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=[*HealthCheck],
        ),
    )
    # To compile nothing is no way to pass.
    assert machine.counts["compiled"], machine.counts


# -- one by one ------------------------------------------------------------------------


Sequence = Callable[[TwinMachine, Any], Any]


def changes(*names: str) -> Sequence:
    def act(machine: TwinMachine, pair: Any) -> None:
        for name in names:
            machine.change(pair, name, quietly=False)

    return act


def hooks(machine: TwinMachine, pair: Any) -> None:
    for kind, place in zip(HOOKS, PLACES, strict=True):
        machine.add_hook(pair, kind, place, quietly=False)
    for _ in HOOKS:
        machine.remove_hook(pair, quietly=True)
    machine.hook_all_modules(pair)


def copies(machine: TwinMachine, pair: Any) -> None:
    for how in COPIES:
        machine.change(machine.make_copy(pair, how), "load_other", quietly=False)
    machine.call(pair, Call())


def new_forward(machine: TwinMachine, pair: Any) -> None:
    for forward in (FORWARDS[1], FORWARDS[0]):
        machine.replace_forward_of_class(pair, forward)


def again(machine: TwinMachine, pair: Any) -> None:
    machine.retry(pair, quietly=False)
    machine.compile_again(pair, "autograd", quietly=False)
    for what in REFUSED:
        machine.refuse(pair, what)


def steps(machine: TwinMachine, pair: Any) -> None:
    for keeps in (False, True):
        machine.step(pair, keeps, refused=keeps)


def graph(machine: TwinMachine, pair: Any) -> None:
    machine.change(pair, "flip_training", quietly=True)
    machine.graph(pair, trains=False, example=False, pads=True)
    for rows in (3, 2, 3):
        machine.call_graphed(pair, Call(rows))
    machine.change(pair, "move_weight", quietly=False)
    machine.change(pair, "set_scale", quietly=False)


# Strategies that replace parts have to follow copies and new classes.
EVERY = ("full", "regional", "nested", "core", "background")
QUICK = ("full", "regional", "autograd")
SEQUENCES: dict[str, tuple[Sequence, tuple[str, ...]]] = {
    "state dict": (changes("load_other", "assign_other"), ("full",)),
    "modes": (changes("flip_training", "part_to_eval"), ("full",)),
    "types": (changes("to_bfloat16", "to_float32"), ("full",)),
    "values": (changes("set_scale", "set_activation", "flip_mode"), ("full",)),
    "containers": (changes("change_list", "replace_table", "write_buffer"), ("full",)),
    "weights": (changes("change_weight", "replace_weight", "move_weight"), ("full",)),
    "gradients": (changes("freeze", "set_gradient", "descend"), ("autograd",)),
    "parts": (changes("replace_part", "replace_block"), ("regional",)),
    "hooks": (hooks, ("full",)),
    "copies": (copies, EVERY),
    "forward of a class": (new_forward, EVERY),
    "again": (again, ("regional",)),
    "steps": (steps, ("full",)),
    "graph": (graph, ("full",)),
}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if way in QUICK else pytest.mark.slow)
        for name, (_, ways) in SEQUENCES.items()
        for way in ways
    ],
)
def test_a_sequence(name: str, way: str) -> None:
    TwinMachine.counts = Counter()
    machine = TwinMachine()
    try:
        pair = machine.begin(way)
        SEQUENCES[name][0](machine, pair)
        machine.states_are_the_same()
    finally:
        machine.teardown()
    assert machine.counts["compiled"]
