"""When the memory of a graph's outputs goes: the rule, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from torchproof.observe.audit.generations import Generations


@dataclass
class Tensor:
    """Stands for an output; `alive` says whether anybody holds it."""

    alive: bool = True


# Runs of graphs, each in a generation, and the outputs that go when it begins, by the
# number of their run.
CASES: dict[str, list[tuple[int, str, list[int]]]] = {
    "the next call takes the memory": [
        *((1, "inference", []), (2, "inference", [0]), (3, "inference", [1])),
    ],
    "graphs of one call leave each other alone": [
        *((1, "inference", []), (1, "inference", []), (2, "inference", [0, 1])),
    ],
    "a backward that is awaited keeps everything": [
        *((1, "forward", []), (2, "forward", []), (2, "backward", [])),
        (3, "forward", [0, 1, 2]),
    ],
    "inference while a backward is awaited takes nothing": [
        *((1, "forward", []), (2, "inference", [])),
    ],
    # Marked steps have negative numbers.
    "a mark does not wait for a backward": [
        *((-1, "forward", []), (-2, "backward", [0])),
    ],
    "in a marked program calls alone begin nothing": [
        *((-1, "inference", []), (-1, "inference", [])),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_go_with_their_generation(name: str) -> None:
    trees: Generations[Tensor] = Generations()
    made: list[Tensor] = []
    for number, mode, indices in CASES[name]:
        gone = trees.begin_run(number, marked=number < 0)
        assert [id(each) for each in gone] == [id(made[index]) for index in indices]
        made.append(Tensor())
        trees.end_run(number, mode, [made[-1]])


def test_what_nobody_holds_or_waits_for_is_not_kept() -> None:
    trees: Generations[Tensor] = Generations()
    first, second = Tensor(), Tensor()
    for number, mode, output in ((1, "inference", first), (2, "forward", second)):
        assert trees.begin_run(number, marked=False) == []
        trees.end_run(number, mode, [output])
        first.alive = False
    trees.ran("backward")  # elsewhere
    assert trees.begin_run(3, marked=False) == [second]
