"""Random sequences of calls, changes and copies, against a twin in eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from twin_machine import Call, TwinMachine


def run(
    machine: type[TwinMachine], examples: int, *, steps: int = 12, **more: Any
) -> Counter[str]:
    """Runs so many sequences; what became of all their calls."""
    machine.counts = Counter()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=[*HealthCheck],
            **{"derandomize": True, **more},
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
    counts = run(Thorough, 25, steps=15, derandomize=False, print_blob=True)
    # To compile and record nothing is no way to pass.
    assert counts["compiled"] > counts["calls"] / 3, counts
    assert counts["replays"], counts


class WithInductor(TwinMachine):
    # Otherwise compiled code draws other random numbers.
    ways = ({"options": {"fallback_random": True}},)
    rounding = 20


@pytest.mark.slow
def test_models_compiled_by_inductor_do_what_their_twins_do() -> None:
    counts = run(WithInductor, 4, steps=10, derandomize=False, print_blob=True)
    assert counts["compiled"] > counts["calls"] / 2, counts


# -- sequences that showed a defect once -----------------------------------------------


Sequence = Callable[[TwinMachine, Any], None]


def add_a_hook(machine: TwinMachine, pair: Any) -> None:
    machine.call(pair, Call())
    machine.add_hook(pair, "register_forward_hook", "blocks.0", quietly=False)


def load_weights(machine: TwinMachine, pair: Any) -> None:
    machine.call(pair, Call())
    machine.change(pair, "load_other", quietly=False)


def change_what_is_read(machine: TwinMachine, pair: Any) -> None:
    machine.graph(pair, trains=False, example=True, pads=False)
    machine.call_graphed(pair, Call())
    machine.change(pair, "set_scale", quietly=False)


def pad(machine: TwinMachine, pair: Any) -> None:
    machine.change(pair, "flip_training", quietly=True)
    machine.graph(pair, trains=False, example=False, pads=True)
    for rows in (3, 2, 3):
        machine.call_graphed(pair, Call(rows))
    machine.change(pair, "move_weight", quietly=False)


def change_a_copy(machine: TwinMachine, pair: Any) -> None:
    machine.call(pair, Call())
    machine.change(machine.make_copy(pair, "deepcopy"), "load_other", quietly=False)


@pytest.mark.parametrize(
    "sequence",
    [
        *(add_a_hook, load_weights, change_a_copy),
        *(pytest.param(e, marks=pytest.mark.slow) for e in (change_what_is_read, pad)),
    ],
)
def test_a_short_sequence(sequence: Sequence) -> None:
    machine = TwinMachine()
    try:
        sequence(machine, machine.begin(0))
        machine.states_are_the_same()
    finally:
        machine.teardown()
