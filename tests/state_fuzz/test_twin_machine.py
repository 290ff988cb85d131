"""Random sequences of calls, changes and copies, against a twin in eager."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch._dynamo
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from model_changes import set_scale
from torch import nn
from twin_machine import Call, TwinMachine, load_other

from torchproof.runtime import backend
from torchproof.runtime.compiled_forward import CompiledForward
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.torch_private import frames


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


@pytest.mark.slow
def test_models_do_what_their_twins_do() -> None:
    counts = run(TwinMachine, 5, steps=10)
    # To compile and record nothing is no way to pass.
    assert counts["compiled"] > counts["calls"] / 2, counts
    assert counts["replays"], counts


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
def test_models_do_what_their_twins_do_in_many_sequences() -> None:
    counts = run(Thorough, 100, steps=25, derandomize=False, print_blob=True)
    assert counts["compiled"] > counts["calls"] / 3, counts
    assert counts["replays"], counts


class WithInductor(TwinMachine):
    # Otherwise compiled code draws other random numbers.
    ways = ({"options": {"fallback_random": True}},)
    rounding = 20


@pytest.mark.slow
def test_models_compiled_by_inductor_do_what_their_twins_do() -> None:
    counts = run(WithInductor, 10, steps=15, derandomize=False, print_blob=True)
    assert counts["compiled"] > counts["calls"] / 2, counts


# -- planted defects -------------------------------------------------------------------


def ignored_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code has no guards on hooks, as by default in torch."""
    switches = frames.compiler_switches

    @contextlib.contextmanager
    def without_hooks(**arguments: Any) -> Iterator[None]:
        with (
            switches(**arguments),
            torch._dynamo.config.patch(skip_nnmodule_hook_guards=True),
        ):
            yield

    monkeypatch.setattr(frames, "compiler_switches", without_hooks)


def kept_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code uses the weights of its first run, whatever is loaded later."""

    def compiler(arguments: Any) -> Callable[..., Any]:
        def compile(gm: Any, inputs: Any, backward: Any) -> Callable[..., Any]:
            kept: dict[int, Any] = {}

            def first(number: int, value: Any) -> Any:
                if not isinstance(value, nn.Parameter):
                    return value
                detached = value.detach()
                return kept.setdefault(number, detached.clone()) + (value - detached)

            return lambda *args: gm.forward(*map(first, range(len(args)), args))

        return compile

    monkeypatch.setattr(backend.backends, "compiler", compiler)


def stale_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording is replayed after what the step reads has changed."""
    monkeypatch.setattr(StateSnapshot, "unchanged", lambda self: True)


def shared_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a model runs the forward of the original."""
    monkeypatch.setattr(
        CompiledForward, "__deepcopy__", lambda self, memo: self, raising=False
    )


Sequence = Callable[[TwinMachine, Any], None]


def add_a_hook(machine: TwinMachine, pair: Any) -> None:
    machine.call(pair, Call())
    machine.add_hook(pair, "register_forward_hook", "blocks.0", quietly=False)


def load_weights(machine: TwinMachine, pair: Any) -> None:
    machine.call(pair, Call())
    machine.change(pair, load_other, quietly=False)


def change_what_is_read(machine: TwinMachine, pair: Any) -> None:
    machine.graph(pair, trains=False, example=True)
    machine.call_graphed(pair, Call())
    machine.change(pair, set_scale, quietly=False)


def change_a_copy(machine: TwinMachine, pair: Any) -> None:
    machine.call(pair, Call())
    machine.change(machine.make_copy(pair, "deepcopy"), load_other, quietly=False)


DEFECTS: dict[Callable[[pytest.MonkeyPatch], None], Sequence] = {
    ignored_hooks: add_a_hook,
    kept_weights: load_weights,
    stale_recordings: change_what_is_read,
    shared_forward: change_a_copy,
}


def perform(sequence: Sequence) -> None:
    machine = TwinMachine()
    try:
        sequence(machine, machine.begin(0))
        machine.states_are_the_same()
    finally:
        machine.teardown()


@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(each, marks=[pytest.mark.slow] if number > 1 else [])
        for number, each in enumerate(DEFECTS)
    ],
)
def test_a_planted_defect_is_noticed(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    perform(DEFECTS[defect])
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        perform(DEFECTS[defect])


@pytest.mark.slow
@pytest.mark.parametrize("defect", [*DEFECTS])
def test_a_planted_defect_is_found_by_chance(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        run(TwinMachine, 50, phases=(Phase.generate,))
