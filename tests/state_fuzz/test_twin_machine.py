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


def run(machine: type[TwinMachine], examples: int, *, steps: int) -> Counter[str]:
    """Runs so many sequences; what became of all their calls."""
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
    return machine.counts


class Thorough(TwinMachine):
    ways = (
        *TwinMachine.ways,
        {"backend": "eager", "wait": False},
        {"backend": "eager", "verify": 2},
        {"backend": "aot_eager", "recompile_limit": 2},
        {"backend": "aot_eager", "strategy": "core:blocks"},
        {"strategy": "eager"},
    )


@pytest.mark.slow
def test_models_do_what_their_twins_do() -> None:
    counts = run(Thorough, 6, steps=12)
    assert counts["compiled"], counts  # to compile nothing is no way to pass


class WithInductor(TwinMachine):
    # Otherwise compiled code draws other random numbers.
    ways = ({"options": {"fallback_random": True}},)
    rounding = 20


@pytest.mark.slow
def test_models_compiled_by_inductor_do_what_their_twins_do() -> None:
    counts = run(WithInductor, 2, steps=8)
    assert counts["compiled"], counts


# -- one by one ------------------------------------------------------------------------


Sequence = Callable[[TwinMachine, Any], Any]
FULL, AUTOGRAD, REGIONAL = range(3)  # of TwinMachine.ways


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
    machine.compile_again(pair, AUTOGRAD, quietly=False)
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


SEQUENCES: dict[str, tuple[Sequence, tuple[int, ...]]] = {
    "state dict": (changes("load_other", "assign_other"), (FULL,)),
    "modes": (changes("flip_training", "part_to_eval"), (FULL,)),
    "types": (changes("to_bfloat16", "to_float32"), (FULL,)),
    "values": (changes("set_scale", "set_activation", "flip_mode"), (FULL,)),
    "containers": (changes("change_list", "replace_table", "write_buffer"), (FULL,)),
    "weights": (changes("change_weight", "replace_weight", "move_weight"), (FULL,)),
    "gradients": (changes("freeze", "set_gradient", "descend"), (AUTOGRAD,)),
    "parts": (changes("replace_part", "replace_block"), (REGIONAL,)),
    "hooks": (hooks, (FULL,)),
    "copies": (copies, (FULL, REGIONAL)),
    "forward of a class": (new_forward, (FULL, REGIONAL)),
    "again": (again, (REGIONAL,)),
    "steps": (steps, (FULL,)),
    "graph": (graph, (FULL,)),
}


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name, (_, ways) in SEQUENCES.items() for way in ways],
)
def test_a_sequence(name: str, way: int) -> None:
    TwinMachine.counts = Counter()
    machine = TwinMachine()
    try:
        pair = machine.begin(way)
        SEQUENCES[name][0](machine, pair)
        machine.states_are_the_same()
    finally:
        machine.teardown()
    assert machine.counts["compiled"]
