"""What torch's own saved calls cannot do, for which packs have a format of their own.

If one of these tests fails, torch has learnt it: see "Packs" in docs/architecture.md.
"""

from __future__ import annotations

import functools
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.aot_compile import ModelInput

pytestmark = pytest.mark.slow
FACTOR = 2.0
X = torch.ones(2, 4)


def logged(forward: Any) -> Any:
    @functools.wraps(forward)
    def inner(self: nn.Module, x: torch.Tensor) -> Any:
        return forward(self, x)

    return inner


class Decorated(nn.Module):
    """Every model of transformers has such a forward."""

    @logged
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR


@torch.no_grad()
def saved(model: nn.Module) -> Any:
    compiled: Any = torch.compile(model, fullgraph=True)
    compiled._aot_compile([ModelInput((X,), {}, [])])
    return compiled._save_aot_compiled_module()


def test_a_decorated_forward_is_not_saved() -> None:
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        saved(Decorated())


@torch.no_grad()
def test_guards_on_globals_are_lost_and_another_call_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: Any = torch.compile(Scaled(), fullgraph=True)
    compiled._load_aot_compiled_module(saved(Scaled()))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0)
    torch.testing.assert_close(compiled(X), X * 2)  # stale: eager gives 5
    with pytest.raises(RuntimeError, match="GuardManager check failed"):
        compiled(torch.ones(3, 4))
