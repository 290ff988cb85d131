"""Two models of the same weights: one as it is, and one compiled here."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import torchproof


class Net(nn.Module):
    """Everything a mode, a move or an attribute can change."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 2)
        self.scale = 2.0

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        hidden = torch.relu(self.norm(self.inner(x)))
        return self.head(self.drop(hidden)) * self.scale + shift

    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mix(x))


def compiled(model: Any, **options: Any) -> Any:
    """With AOTAutograd and without generated code, unless told otherwise."""
    return torchproof.compile(model, **{"backend": "aot_eager"} | options)


def twins(model: nn.Module, **options: Any) -> tuple[Any, Any]:
    """The model, and a compiled one of the same state."""
    return model, compiled(copy.deepcopy(model), **options)


def sample(rows: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator)


def assert_alike(plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Both give the same answer, from the same random numbers; the compiled one's."""
    torch.manual_seed(0)
    expected = plain(*args, **kwargs)
    torch.manual_seed(0)
    answer = model(*args, **kwargs)
    torch.testing.assert_close(answer, expected)
    return answer


def assert_trained_alike(plain: Any, model: Any, *args: Any) -> None:
    """The same gradients too, which are gone afterwards."""
    for one in (plain, model):
        torch.manual_seed(0)
        answer = one(*args)
        (answer[0] if isinstance(answer, tuple) else answer).square().sum().backward()
    for (name, one), other in zip(
        plain.named_parameters(), model.parameters(), strict=True
    ):
        torch.testing.assert_close(other.grad, one.grad, msg=lambda m, n=name: n + m)
        one.grad = other.grad = None


def assert_compiled(model: Any, compilations: int | None = None) -> None:
    """Nothing fell back, and the last call ran compiled code."""
    told = torchproof.status(model)
    assert not told.fallbacks, str(told)
    assert told.compilations, str(told)
    if compilations is not None:
        assert len(told.compilations) == compilations, str(told)
