"""What people compile: parts of others, methods, partial functions, in threads."""

from __future__ import annotations

import functools
import json
import pickle
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.method_replacement import MethodReplacement


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sin()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 3

    @torchproof.compile(backend="eager")
    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@torchproof.compile(backend="eager")
def doubled(x: Tensor) -> Tensor:
    return x * 2


def test_a_compiled_module_is_traced_as_part_of_a_larger_one() -> None:
    outer, x = Outer(), torch.ones(2, 4)
    expected = outer(x)
    torchproof.compile(outer.inner, backend="eager")
    outer(x)
    torchproof.compile(outer, backend="eager")
    for _ in range(3):
        assert torch.equal(outer(x), expected)
    status = torchproof.status(outer)
    assert (len(status.compilations), status.recompiles) == (1, 0)


def test_a_compiled_module_is_traced_by_torch_compile() -> None:
    block, x = Block(), torch.ones(2, 4)
    expected = block(x) + 2
    torchproof.compile(block, backend="eager")
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=count, fullgraph=True)
    def plus_two(x: Tensor) -> Tensor:
        return block(x) + 2

    for _ in range(3):
        assert torch.equal(plus_two(x), expected)
    assert len(graphs) == 1


def test_a_method_is_compiled_in_the_body_of_its_class() -> None:
    model, x = Decorated(), torch.ones(2)
    assert model(x).tolist() == [3.0, 3.0]
    model.factor = 4
    assert model(x).tolist() == [4.0, 4.0]
    assert torchproof.status(Decorated.forward).calls == 2
    torchproof.compile(model, backend="eager")
    assert model(x).tolist() == [4.0, 4.0]
    assert torchproof.status(model).compiled_calls == 1


def test_a_decorated_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_compiled_again_as_another_strategy_leaves_no_compiled_blocks() -> None:
    model, x = Blocks(), torch.ones(2, 4)
    expected = model(x)
    torchproof.compile(model, strategy="regional", backend="eager")
    model(x)
    assert all(isinstance(block.forward, MethodReplacement) for block in model.blocks)
    torchproof.compile(model, strategy="eager")
    assert not any("forward" in block.__dict__ for block in model.blocks)
    assert torch.equal(model(x), expected)


def test_threads_that_run_eager_at_once_leave_blocks_compiled() -> None:
    model, x = Blocks(), torch.ones(2, 4)
    torchproof.compile(model, strategy="regional", backend="eager")
    model(x)
    entry, compiled = model.forward, [block.forward.run for block in model.blocks]
    second_is_in = threading.Event()

    def wait(module: nn.Module, args: object) -> None:
        """The first ends when the second has begun, the second after the first."""
        if threading.current_thread() is threads[0]:
            second_is_in.wait(0.3)
        else:
            second_is_in.set()
            threads[0].join(1)

    model.blocks[0].linear.register_forward_pre_hook(wait)
    threads = [threading.Thread(target=entry.run_eager, args=(x,)) for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert [block.forward.run for block in model.blocks] == compiled


class Callable:
    def __call__(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.parametrize(
    "function",
    [torch.sin, functools.partial(torch.add, other=1), Callable()],
    ids=["builtin", "partial", "object"],
)
def test_whatever_can_be_called_is_compiled(function: Any) -> None:
    x = torch.ones(2)
    compiled = torchproof.compile(function, backend="eager")
    assert torch.equal(compiled(x), function(x))
    assert torchproof.status(compiled).compiled_calls == 1


def test_a_forward_that_a_library_replaced_is_compiled() -> None:
    model, x = Block(), torch.ones(2, 4)
    expected = model(x) + 1

    def hooked(module: nn.Module, x: Tensor) -> Tensor:
        return Block.forward(module, x) + 1

    model.forward = functools.partial(hooked, model)
    torchproof.compile(model, backend="eager")
    assert torch.equal(model(x), expected)
    assert torchproof.status(model).compiled_calls == 1


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_taken_and_have_no_sizes_to_tell(
    layout: torch.layout,
) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    compiled = torchproof.compile(lambda x: x * 2, backend="aot_eager")
    assert [part.sum().item() for part in compiled(nested).unbind()] == [4.0, 6.0]
    json.dumps(torchproof.status(compiled).to_json())
