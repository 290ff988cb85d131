"""Strategies at work: what gets compiled, by which lines, and what blocks share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from torchproof.measure.shared_code import artifacts, sharing
from torchproof.records.run import UserError
from torchproof.strategies import apply, planning
from torchproof.strategies.applied import Applied, assert_backend
from torchproof.strategies.strategy import (
    NotApplicable,
    Strategy,
    parse,
    with_arguments,
)

ROWS = (3, 5, 7)


class Block(nn.Module):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.inner, self.index = nn.Linear(8, 8), index

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


class CountedBlock(Block):
    """Its number is part of what it computes, as a layer's place in a cache is."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.index + 1)


def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


class DecoratedBlock(Block):
    forward = decorated(Block.forward)


class Net(nn.Module):
    def __init__(self, kind: type[Block] = Block, count: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(kind(index) for index in range(count))

    def encode(self, x: Tensor) -> Tensor:
        return self.head(x).relu()

    def forward(self, x: Tensor) -> Tensor:
        x = self.encode(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(autouse=True)
def counter() -> Iterator[CompileCounter]:
    """A backend named `counter` that counts the graphs it gets."""
    made = CompileCounter()
    registry = torch._dynamo.backends.registry
    registry.register_backend(compiler_fn=made, name="counter")
    torch._dynamo.reset()
    yield made
    for table in (registry._COMPILER_FNS, registry._BACKENDS):
        table.pop("counter", None)
    torch._dynamo.reset()


def make(kind: type[Block] = Block, count: int = 3) -> Net:
    torch.manual_seed(0)
    return Net(kind, count).requires_grad_(False)


def counted(name: str, backend: str = "counter") -> Strategy:
    return with_arguments(parse(name), backend=backend)


def calls_of(*rows: int) -> list[tuple[Tensor]]:
    """Made anew each time: a mark stays with its tensor."""
    return [(torch.arange(count * 8.0).view(count, 8) / 99,) for count in rows]


def applied(
    name: str, net: Any, calls: Any = None, *, backend: str = "counter"
) -> Applied:
    """The strategy on a target; all calls have been made."""
    calls = calls or calls_of(*ROWS)
    done = apply(counted(name, backend), net, calls)
    with done.recording_compilations():
        for call in calls:
            done.fn(**call) if isinstance(call, dict) else done.fn(*call)
    return done


# What is compiled at three sizes: once, for the second one once more with the size
# left open, then no more; with marks or all sizes open, once; without, every time.
GRAPHS = {
    "full": 2,
    "full:static": 3,
    "full:dynamic": 1,
    "full:marks": 1,
    "core:encode": 2,
    "core:encode:marks": 1,
    "core:head": 2,
    "core:blocks.1.forward:static": 3,
    "regional": 2,
    "regional:static": 3,
    "regional:marks": 1,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_and_answers(name: str, counter: CompileCounter) -> None:
    done = applied(name, make())
    assert counter.frame_count == GRAPHS[name]
    for call in calls_of(*ROWS):
        torch.testing.assert_close(done.fn(*call), make()(*call))


@pytest.mark.parametrize(
    "name", ["full:dynamic", "full:marks", "core:encode:marks", "regional"]
)
def test_pasted_lines_equal_the_applied_strategy(
    name: str, counter: CompileCounter
) -> None:
    source = apply(counted(name), make(), calls_of(*ROWS)).source.replace(
        "model", "net"
    )
    names: dict[str, Any] = {"net": make()}
    exec(source, names)
    for call in calls_of(*ROWS):
        names["net"](*call)
    assert counter.frame_count == GRAPHS[name]


def test_marks_where_nothing_varies_are_left_out() -> None:
    done = applied("full:marks", make(), calls_of(3))
    assert done.source == (
        'import torch\n\nmodel = torch.compile(model, backend="counter")'
    )
    assert done.note is not None and "size" in done.note


# -- core ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("core", r"core:METHOD\b.*\bNet\b.*\bforward, encode, head\.forward\b"),
        ("core:encoed", r"\bNet\b.*\bencoed\b.*\bencode\?"),
        ("core:head.weight", r"\bLinear\b.*\bweight\b"),
        ("core:nowhere.forward", r"\bNet\b.*\bnowhere\b"),
    ],
)
def test_missing_method_is_refused_with_existing_ones(name: str, pattern: str) -> None:
    with pytest.raises(UserError, match=pattern):
        apply(parse(name), make(), calls_of(*ROWS))


# -- one artifact ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "graphs"),
    [
        ("regional", Block, None),
        ("regional:marks", DecoratedBlock, None),
        ("nested", DecoratedBlock, 2),
        ("nested:marks", Block, 1),
    ],
)
def test_equal_blocks_share_one_artifact(
    name: str, kind: type[Block], graphs: int | None
) -> None:
    done = applied(name, make(kind, count=5), backend="aot_eager")
    assert artifacts(done) == {kind.__name__: 1}
    assert sharing(done) == []
    if graphs is not None:
        assert len({each.circumstances[0] for each in done.compilations}) == graphs


@pytest.mark.parametrize("name", ["regional", "nested"])
def test_number_in_each_block_prevents_sharing(name: str) -> None:
    done = applied(name, make(CountedBlock), calls_of(3), backend="aot_eager")
    assert artifacts(done) == {"CountedBlock": 3}
    (note,) = sharing(done)
    pattern = r"\b3 x CountedBlock\b" + r".*\b3\b.*\bself\.index\b" * (name != "nested")
    assert re.search(pattern, note) and "limit" not in note


def test_too_many_artifacts_leave_blocks_eager() -> None:
    done = applied("regional", make(CountedBlock, count=10), calls_of(3))
    assert artifacts(done) == {"CountedBlock": 8}
    (note,) = sharing(done)
    assert re.search(r"\b10 x CountedBlock\b.*\b8\b.*\blimit\b", note)


# -- nested: one graph, in which the code of a block is made once ---------------------

LINES = """\
import functools

import torch

for block in model.blocks:
    region = torch.compiler.nested_compile_region(type(block).forward)
    block.forward = functools.partial(region, block)
model = torch.compile(model, backend="aot_eager")"""


def test_every_block_runs_with_its_own_weights() -> None:
    plain, net = make().requires_grad_(), make().requires_grad_()
    done = applied("nested", net, calls_of(5), backend="aot_eager")
    (call,) = calls_of(5)
    for each in (done.fn, plain):
        each(*call).sum().backward()
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_lines_and_the_note() -> None:
    done = applied("nested", make(), calls_of(3), backend="aot_eager")
    assert done.source == LINES
    assert done.note is not None and "3 x Block" in done.note
    names: dict[str, Any] = {"model": make()}
    exec(done.source, names)
    assert torch.equal(names["model"](*calls_of(3)[0]), done.fn(*calls_of(3)[0]))


def test_blocks_of_a_kind_that_others_have_leave_those_alone() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    forward = nn.Sequential.forward
    done = applied("nested", net.requires_grad_(False), backend="aot_eager")
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
        done = applied("full:marks", mixed, calls, backend="aot_eager")
    assert "{('pair', 0): (0,), ('pair', 1): (0,)}" in done.source


def test_nested_needs_repeated_blocks_with_their_own_forward() -> None:
    for target in (nn.Sequential(nn.Linear(8, 8)), torch.tanh):
        with pytest.raises(NotApplicable, match=r"\bblocks\b"):
            planning.plan(parse("nested"), target, calls_of(3))
    net = make()
    net.blocks[1].forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(NotApplicable, match=r"blocks\.1\b.*\bforward\b"):
        planning.plan(parse("nested"), net, calls_of(3))


# -- backends --------------------------------------------------------------------------


def test_backend_that_is_not_there() -> None:
    assert_backend("aot_eager")
    with pytest.raises(UserError, match=r"'induktor'.*\binductor\?"):
        assert_backend("induktor")
    with pytest.raises(UserError, match="'tvm'"):
        apply(with_arguments(parse("full"), backend="tvm"), make(), calls_of(*ROWS))


def test_arguments_torch_does_not_take() -> None:
    strategy = with_arguments(parse("full"), options={"no_such_option": True})
    with pytest.raises(UserError, match=r"^full: .*no_such_option"):
        apply(strategy, make(), calls_of(*ROWS))
