"""Errors of a compiled model are those of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from twins import (
    Net,
    assert_alike,
    assert_compiled,
    sample,
    twins,
)

import torchproof

# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


# -- errors ----------------------------------------------------------------------------


class Picky(nn.Module):
    """Raises for some inputs: on purpose, or because sizes do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError(f"two dimensions, not {x.dim()}")
        return self.mix(x)


class Strict(nn.Module):
    """Looks at values: the graph breaks there."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if bool((y < 0).any()):
            raise ValueError("negative")
        return y + 1


BAD = {
    "on purpose": (Picky, lambda: torch.ones(4)),
    "sizes": (Picky, lambda: torch.ones(2, 5)),
    "dtype": (Picky, lambda: torch.ones(2, 4, dtype=torch.int64)),
    "argument": (Picky, lambda: "text"),
    "value": (Strict, lambda: -torch.ones(2, 4)),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("first", [pytest.param("bad", marks=pytest.mark.slow), "good"])
def test_errors_of_the_model_are_raised_as_they_are(bad: str, first: str) -> None:
    made, spoiled = BAD[bad]
    plain, model = twins(made())
    good = sample().abs()
    if first == "good":
        assert_alike(plain, model, good)
    with pytest.raises(Exception) as expected:
        plain(spoiled())
    for _ in range(2):
        with pytest.raises(Exception) as raised:
            model(spoiled())
        assert type(raised.value) is type(expected.value)
        assert str(raised.value) == str(expected.value)
    for _ in range(2):
        assert_alike(plain, model, good)
    assert_compiled(model)
    before = torchproof.status(model).compiled_calls
    model(good)
    assert torchproof.status(model).compiled_calls == before + 1


def test_wrong_arguments_are_refused_with_eagers_words() -> None:
    plain, model = twins(Net().eval())
    for args, kwargs in (((), {}), ((sample(), 1), {}), ((sample(),), {"shfit": 1})):
        with pytest.raises(TypeError) as expected:
            plain(*args, **kwargs)
        with pytest.raises(TypeError) as raised:
            model(*args, **kwargs)
        assert str(raised.value) == str(expected.value)
    assert_alike(plain, model, sample())
    assert_compiled(model)


def test_errors_that_are_caught_inside_and_generators() -> None:
    class Inside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with contextlib.suppress(KeyError):
                return x * {}["missing"]
            return sum(self.parts(x))  # type: ignore[return-value]

        def parts(self, x: Tensor) -> Iterator[Tensor]:
            for power in range(1, 3):
                yield x**power

    plain, model = twins(Inside())
    assert_alike(plain, model, sample())

    class Lazy(nn.Module):
        def forward(self, x: Tensor) -> Iterator[Tensor]:
            for power in range(1, 3):
                yield x**power

    plain, model = twins(Lazy())
    torch.testing.assert_close(list(model(sample())), list(plain(sample())))
