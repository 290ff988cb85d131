"""What a compiled call is made of, measured on calls whose cost is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from torchproof.observe.break_cost import BreakCost

PASSES = 15


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.compiler.disable
def spin(microseconds: float) -> None:
    end = time.perf_counter_ns() + microseconds * 1000
    while time.perf_counter_ns() < end:
        pass


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of this file in which a function says something."""
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    return next(n for n in range(first, len(lines)) if text in lines[n - 1])


def dissect(fn: Any, *calls: tuple[Any, ...], **options: Any) -> dict[str, Any]:
    with BreakCost() as anatomy:
        compiled = torch.compile(fn, backend="aot_eager", **options)
        for _ in range(3):
            for call in calls:
                compiled(*call)
        with anatomy.watching():
            for _ in range(PASSES):
                for index, call in enumerate(calls):
                    with anatomy.call(index):
                        compiled(*call)
        return anatomy.costs().to_json()


def costs(found: dict[str, Any]) -> dict[int, float]:
    assert all(gap["file"] == __file__ for gap in found["gaps"])
    return {gap["line"]: gap["us"] for gap in found["gaps"]}


def two_breaks(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    spin(600)
    x = x * 2
    spin(200)
    return x.sin()


def test_each_break_is_charged_with_its_own_time() -> None:
    found = costs(dissect(two_breaks, (torch.randn(4),)))
    long, short = line_of(two_breaks, "spin(600)"), line_of(two_breaks, "spin(200)")
    assert set(found) == {long, short}
    # The way into the next graph, guards included, is part of the break.
    assert 600 < found[long] < 1500
    assert 200 < found[short] < found[long] - 200


def inner(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    spin(400)
    return x.cos()


def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(x + 1) * 2


def test_a_break_in_a_called_function_is_charged_to_its_line_there() -> None:
    found = costs(dissect(outer, (torch.randn(4),)))
    assert list(found) == [line_of(inner, "spin(400)")]
    assert 400 < found[line_of(inner, "spin(400)")] < 1500


def break_first(x: torch.Tensor) -> torch.Tensor:
    spin(400)
    return x + 1


def break_last(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    spin(400)
    return y


@pytest.mark.parametrize("fn", [break_first, break_last])
def test_a_break_before_or_after_all_graphs_is_charged(fn: Any) -> None:
    found = costs(dissect(fn, (torch.randn(4),)))
    assert list(found) == [line_of(fn, "spin(400)")]
    assert 400 < found[line_of(fn, "spin(400)")] < 1200


def breaks_in_a_row(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    spin(300)
    spin(100)
    return x * 2


def test_breaks_with_no_graph_between_them_are_said_to_be_together() -> None:
    [gap] = dissect(breaks_in_a_row, (torch.randn(4),))["gaps"]
    assert gap["line"] == line_of(breaks_in_a_row, "spin(300)")
    assert gap["together_with"] == [
        [__file__, line_of(breaks_in_a_row, "spin(100)")],
    ]
    assert 400 < gap["us"] < 1200


def breaks_if_flag(x: torch.Tensor, flag: bool) -> torch.Tensor:
    x = x + 1
    if flag:
        spin(800)
    return x * 2


def test_a_break_in_one_of_two_calls_costs_half_of_it_per_call() -> None:
    found = dissect(breaks_if_flag, (torch.randn(4), True), (torch.randn(4), False))
    assert 400 < costs(found)[line_of(breaks_if_flag, "spin(800)")] < 800


def skipped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + 1
        spin(100)
    return x


def test_of_a_skipped_frame_nothing_is_claimed() -> None:
    found = dissect(skipped, (torch.randn(4),))
    assert found["gaps"] == []
    assert found["overhead_us"] is None


def test_a_call_that_compiles_is_not_measured() -> None:
    sizes = iter(range(2, 200))

    def grow() -> torch.Tensor:
        return torch.randn(next(sizes))

    with BreakCost() as anatomy:
        compiled = torch.compile(
            lambda x: two_breaks(x), backend="eager", dynamic=False
        )
        with anatomy.watching():
            for _ in range(3):
                with anatomy.call(0):
                    compiled(grow())
        found = anatomy.costs().to_json()
    assert (found["measured_calls"], found["gaps"]) == (0, [])
    assert found["overhead_us"] is None


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Cell() for _ in range(5))
        self.cell = Cell()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            x = cell(x)
        for _ in range(7):
            x = self.cell(x)
        return x


def test_lines_tell_equal_modules_from_one_module_called_again() -> None:
    [graph] = dissect(Deep(), (torch.randn(4),))["graphs"]
    assert graph["nodes"] == 2 * (5 + 7)
    lines = {line["line"]: line for line in graph["lines"]}
    over_modules = lines[line_of(Deep.forward, "x = cell(x)")]
    over_time = lines[line_of(Deep.forward, "x = self.cell(x)")]
    assert (over_modules["repeats"], over_modules["copies"]) == (1, 5)
    assert (over_modules["nodes"], over_modules["block"]) == (10, "Cell")
    assert (over_time["repeats"], over_time["nodes"]) == (7, 14)


def test_lines_count_the_iterations_of_a_loop() -> None:
    def unrolled(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x.sin() + 1
        return x * 2

    [graph] = dissect(unrolled, (torch.randn(4),))["graphs"]
    assert graph["nodes"] == 41
    first = graph["lines"][0]
    assert (first["nodes"], first["repeats"]) == (40, 20)
    assert first["line"] == line_of(unrolled, "x.sin() + 1")
