"""Marks on the sizes of inputs mean what they mean to torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic

import torchproof

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + 1


class Fixed(nn.Module):
    """Its code holds for three rows only."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 3 else x + 1


def called(
    model: nn.Module, mark: Callable[..., Any], sizes: tuple[int, ...], **options: Any
) -> Any:
    plain = type(model)()
    compiled = torchproof.compile(model, backend="aot_eager", **options)
    for size in sizes:
        x = torch.linspace(0, 1, size)
        mark(x, 0)
        torch.testing.assert_close(compiled(x), plain(x))
    return torchproof.status(compiled)


@pytest.mark.parametrize("mark", [mark_dynamic, maybe_mark_dynamic])
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"dynamic": False}, marks=pytest.mark.slow),
        pytest.param({"verify": "first"}, marks=pytest.mark.slow),
    ],
)
def test_a_size_that_is_marked_dynamic_is_compiled_once(
    mark: Any, options: dict[str, Any]
) -> None:
    told = called(Net(), mark, (3, 5, 7), **options)
    assert len(told.compilations) == 1 and not told.fallbacks, told


def test_without_a_mark_a_second_size_is_compiled_again() -> None:
    told = called(Net(), lambda x, index: None, (3, 5, 7))
    assert told.recompiles == 1, told


def test_a_size_that_is_marked_static_never_becomes_dynamic() -> None:
    told = called(Net(), mark_static, (3, 4, 5, 6, 7), recompile_limit=3)
    assert told.recompiles == 3
    (note,) = told.notes
    assert "mark_static" in note and "is dynamic" not in note
    (fallback,) = told.fallbacks
    assert fallback.kind == "storm" and "size mismatch" in fallback.why


def test_a_mark_that_the_code_contradicts_is_one_line() -> None:
    told = called(Fixed(), mark_dynamic, (3, 3))
    (fallback,) = told.fallbacks
    assert fallback.kind == "compile error" and not told.compilations
    for words in ("marked", "'x'", "maybe_mark_dynamic"):
        assert words in fallback.why, fallback.why
    assert "\n" not in fallback.why
    assert not called(Fixed(), maybe_mark_dynamic, (3, 3)).fallbacks
