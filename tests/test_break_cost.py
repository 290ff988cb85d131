"""What a compiled call is made of, measured on calls whose cost is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from torchproof.observe import break_cost
from torchproof.observe.break_cost import BreakCost

NOW_NS = [0]  # the clock of the tests: only `spin` takes time


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    clock = SimpleNamespace(perf_counter_ns=lambda: NOW_NS[0])
    monkeypatch.setattr(break_cost, "time", clock)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.compiler.disable
def spin(microseconds: int) -> None:
    NOW_NS[0] += microseconds * 1000


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of this file in which a function says something."""
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    return next(n for n in range(first, len(lines)) if text in lines[n - 1])


def dissect(fn: Any, *calls: tuple[Any, ...]) -> dict[str, Any]:
    with BreakCost() as anatomy:
        compiled = torch.compile(fn, backend="eager")
        for _ in range(3):
            for call in calls:
                compiled(*call)
        with anatomy.watching():
            for _ in range(5):
                for index, call in enumerate(calls):
                    with anatomy.call(index):
                        compiled(*call)
        return anatomy.costs().to_json()


def two_breaks(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    spin(600)
    x = x * 2
    spin(200)
    return x.sin()


def inner(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    spin(400)
    return x.cos()


def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(x + 1) * 2


def break_first(x: torch.Tensor) -> torch.Tensor:
    spin(400)
    return x + 1


def break_last(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    spin(400)
    return y


def breaks_in_a_row(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    spin(300)
    spin(100)
    return x * 2


def skipped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + 1
        spin(100)
    return x


@pytest.mark.parametrize(
    ("fn", "at", "expected"),
    [
        (two_breaks, two_breaks, {"spin(600)": 600, "spin(200)": 200}),
        (outer, inner, {"spin(400)": 400}),  # the line in the called function
        (break_first, break_first, {"spin(400)": 400}),
        (break_last, break_last, {"spin(400)": 400}),
        (breaks_in_a_row, breaks_in_a_row, {"spin(300)": 400}),  # no graph between
        (skipped, skipped, {}),  # nothing is claimed
    ],
)
def test_each_break_is_charged_with_its_own_time(
    fn: Any, at: Any, expected: dict[str, int]
) -> None:
    found = dissect(fn, (torch.randn(4),))
    assert all(gap["file"] == __file__ for gap in found["gaps"])
    assert {gap["line"]: gap["us"] for gap in found["gaps"]} == {
        line_of(at, text): us for text, us in expected.items()
    }
    together = [each for gap in found["gaps"] for each in gap["together_with"]]
    in_a_row = [[__file__, line_of(breaks_in_a_row, "spin(100)")]]
    assert together == (in_a_row if fn is breaks_in_a_row else [])
    assert fn is not skipped or found["overhead_us"] is None


def breaks_if_flag(x: torch.Tensor, flag: bool) -> torch.Tensor:
    x = x + 1
    if flag:
        spin(800)
    return x * 2


def test_a_break_in_one_of_two_calls_costs_half_of_it_per_call() -> None:
    found = dissect(breaks_if_flag, (torch.randn(4), True), (torch.randn(4), False))
    [gap] = found["gaps"]
    assert (gap["line"], gap["us"]) == (line_of(breaks_if_flag, "spin(800)"), 400)


def test_a_call_that_compiles_is_not_measured() -> None:
    with BreakCost() as anatomy:
        compiled = torch.compile(two_breaks, backend="eager", dynamic=False)
        with anatomy.watching():
            for size in (2, 3, 4):
                with anatomy.call(0):
                    compiled(torch.randn(size))
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
