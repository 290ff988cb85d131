"""What counts as an answer of a target: everything that can be compared, or a no."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from torchproof.records.run import Frame
from torchproof.targets import calls
from torchproof.targets.target import Loaded
from torchproof.torch_private.comparison import compare


class Cache:
    """Holds tensors as models' caches do: in attributes, lists and each other."""

    def __init__(self, values: torch.Tensor) -> None:
        self.layers = [{"keys": values}]
        self.owner = self
        self.made_at = id(self)


def answers(fn: Callable[[torch.Tensor], Any]) -> calls.Answers:
    loaded = Loaded(fn, [(torch.ones(3),)], None, Frame("file.py", 1, "make"))
    return calls.answers(loaded, fn, train=False)


@pytest.mark.parametrize("wrap", [Cache, lambda x: x.numpy(), lambda x: x.numpy()[0]])
def test_tensors_are_compared_wherever_an_output_holds_them(
    wrap: Callable[[torch.Tensor], Any],
) -> None:
    eager = answers(lambda x: wrap(x + 1))
    assert compare(answers(lambda x: wrap(x + 1)), eager).verdict == "same"
    assert compare(answers(lambda x: wrap(x + 2)), eager).verdict == "wrong"


def test_output_that_cannot_be_compared_is_not_called_right() -> None:
    def later(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x

    found = compare(answers(later), answers(later))
    assert found.verdict is None
    assert "generator" in found.why


def test_function_without_an_output_is_judged_by_what_it_changes() -> None:
    def double(x: torch.Tensor) -> None:
        x.mul_(2)

    def triple(x: torch.Tensor) -> None:
        x.mul_(3)

    assert compare(answers(double), answers(double)).verdict == "same"
    assert compare(answers(triple), answers(double)).verdict == "wrong"


def test_input_that_is_converted_has_a_gradient_of_its_own() -> None:
    original = torch.ones(3, dtype=torch.float64, requires_grad=True)
    loaded = Loaded(len, [(original,)], None, Frame("file.py", 1, "make"))
    [(moved,)] = calls._converted(loaded, dtype=torch.float32).calls
    assert moved.is_leaf and moved.requires_grad
    [(same,)] = calls._converted(loaded, dtype=torch.float64).calls
    assert same is original


class Batch(NamedTuple):
    values: torch.Tensor
    length: int


@dataclass(frozen=True)
class Request:
    batch: Batch
    masks: tuple[torch.Tensor, ...] = ()


@dataclass
class Scores:
    request: Request
    bias: torch.Tensor


def test_named_tuples_and_dataclasses_among_the_inputs_are_converted() -> None:
    x = torch.ones(3)
    original = Scores(Request(Batch(x, 3), (x, torch.ones(3).bool())), x)
    loaded = Loaded(torch.sin, [(original,)], None, Frame("file.py", 1, "make"))
    [(moved,)] = calls._converted(loaded, dtype=torch.bfloat16).calls
    assert type(moved) is Scores and type(moved.request.batch) is Batch
    assert moved.request.batch.values.dtype is moved.bias.dtype is torch.bfloat16
    assert moved.request.masks[0] is moved.bias  # shared, as before
    assert (
        moved.request.masks[1].dtype is torch.bool and moved.request.batch.length == 3
    )
    assert original.bias is x
    [(moved,)] = calls._converted(loaded, device="meta").calls
    assert moved.bias.is_meta and moved.request.batch.values.is_meta
