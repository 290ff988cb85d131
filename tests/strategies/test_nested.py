"""The form `nested`: one graph, in which the code of a block is made once for all."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import test_applying
import torch
import torch._dynamo
from test_applying import ROWS, Block, CountedBlock, Net, calls_of
from torch import Tensor, nn

from torchproof.measure.shared_code import artifacts, sharing
from torchproof.strategies.strategy import NotApplicable, parse

LINES = """\
import functools

import torch

for block in model.blocks:
    region = torch.compiler.nested_compile_region(type(block).forward)
    block.forward = functools.partial(region, block)
model = torch.compile(model, backend="aot_eager")"""


applied = functools.partial(test_applying.applied, backend="aot_eager")


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(kind: type[Block] = Block, count: int = 3) -> Net:
    torch.manual_seed(0)
    return Net(kind, count)


def gradients(net: nn.Module, answer: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(answer.sum(), list(net.parameters())))


def test_every_block_runs_with_its_own_weights() -> None:
    plain, net = make(), make()
    done = applied("nested", net)
    for call in calls_of(*ROWS):
        answer, expected = done.fn(*call), plain(*call)
        torch.testing.assert_close(answer, expected)
        mine, theirs = gradients(net, answer), gradients(plain, expected)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["nested", "nested:marks"])
def test_code_of_a_block_is_made_once(name: str) -> None:
    with torch.no_grad():
        done = applied(name, make(count=4))
    assert artifacts(done) == {"Block": 1} and sharing(done) == []
    graphs = {each.circumstances[0] for each in done.compilations}
    assert len(graphs) == {"nested": 2, "nested:marks": 1}[name]


def test_number_in_each_block_prevents_that() -> None:
    done = applied("nested", make(CountedBlock).requires_grad_(False), calls_of(3))
    assert artifacts(done) == {"CountedBlock": 3}
    assert "3 x CountedBlock" in sharing(done)[0]


def test_lines_and_the_note() -> None:
    net = make()
    with torch.no_grad():
        done = applied("nested", make(), calls_of(3))
        assert done.source == LINES
        assert done.note is not None and "3 x Block" in done.note
        names: dict[str, Any] = {"model": net}
        exec(done.source, names)
        assert torch.equal(names["model"](*calls_of(3)[0]), done.fn(*calls_of(3)[0]))


def test_blocks_of_a_kind_that_others_have_leave_those_alone() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    forward = nn.Sequential.forward
    with torch.no_grad():
        done = applied("nested", net)
    assert artifacts(done) == {"Sequential": 1}
    assert nn.Sequential.forward is forward and "forward" not in vars(net)


def test_tensors_inside_arguments_are_marked() -> None:
    def mixed(pair: tuple[Tensor, Tensor], *, more: dict[str, Tensor]) -> Tensor:
        return pair[0] + pair[1] + more["bias"]

    more = {"bias": torch.ones(3)}
    calls = [
        {"pair": (torch.randn(rows, 3), torch.randn(rows, 1)), "more": more}
        for rows in (4, 5, 6)
    ]
    with torch._dynamo.config.patch(error_on_recompile=True):
        done = applied("full:marks", mixed, calls)
    assert "{('pair', 0): (0,), ('pair', 1): (0,)}" in done.source


# -- where it cannot be ----------------------------------------------------------------


def test_nested_needs_repeated_blocks_with_their_own_forward() -> None:
    for target in (nn.Sequential(nn.Linear(8, 8)), torch.tanh):
        with pytest.raises(NotApplicable, match=r"\bblocks\b"):
            parse("nested").plan(target, calls_of(3))
    net = make()
    net.blocks[1].forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(NotApplicable, match=r"blocks\.1\b.*\bforward\b"):
        parse("nested").plan(net, calls_of(3))
