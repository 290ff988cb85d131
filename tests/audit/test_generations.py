"""When the memory of a graph's outputs goes: the rule, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.observe.audit.generations import Generations


@dataclass
class Tensor:
    """Stands for an output; `alive` says whether anybody holds it."""

    alive: bool = True


def run(
    trees: Generations[Tensor], number: int, mode: str = "inference", **how: bool
) -> tuple[list[Tensor], Tensor]:
    """What goes when a graph runs in a generation, and what it returns."""
    gone = trees.begin_run(number, marked=how.get("marked", False))
    made = Tensor()
    trees.end_run(number, mode, [made])
    return gone, made


def test_the_next_call_takes_the_memory() -> None:
    trees: Generations[Tensor] = Generations()
    _, first = run(trees, 1)
    gone, second = run(trees, 2)
    assert gone == [first]
    gone, _ = run(trees, 3)
    assert gone == [second]


def test_graphs_of_one_call_leave_each_other_alone() -> None:
    trees: Generations[Tensor] = Generations()
    _, first = run(trees, 1)
    gone, second = run(trees, 1)
    assert not gone
    gone, _ = run(trees, 2)
    assert gone == [first, second]


def test_what_nobody_holds_is_not_lost() -> None:
    trees: Generations[Tensor] = Generations()
    _, first = run(trees, 1)
    first.alive = False
    assert run(trees, 2)[0] == []


def test_a_backward_that_is_awaited_keeps_everything() -> None:
    trees: Generations[Tensor] = Generations()
    _, first = run(trees, 1, "forward")
    gone, second = run(trees, 2, "forward")
    assert not gone
    gone, gradient = run(trees, 2, "backward")
    assert not gone
    gone, _ = run(trees, 3, "forward")
    assert gone == [first, second, gradient]


def test_inference_while_a_backward_is_awaited_takes_nothing() -> None:
    trees: Generations[Tensor] = Generations()
    run(trees, 1, "forward")
    assert run(trees, 2, "inference")[0] == []


def test_a_mark_does_not_wait_for_a_backward() -> None:
    trees: Generations[Tensor] = Generations()
    _, saved = run(trees, -1, "forward", marked=True)
    assert run(trees, -2, "backward", marked=True)[0] == [saved]


def test_in_a_marked_program_calls_alone_begin_nothing() -> None:
    trees: Generations[Tensor] = Generations()
    run(trees, -1, marked=True)
    assert run(trees, -1, marked=True)[0] == []


def test_a_backward_that_runs_elsewhere_is_awaited_no_more() -> None:
    trees: Generations[Tensor] = Generations()
    _, first = run(trees, 1, "forward")
    trees.ran("backward")
    assert run(trees, 2, "forward")[0] == [first]
