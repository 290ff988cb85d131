"""The float64 reference with CUDA tensors: fused attention, dropout, backward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from torchproof.measure.numerics import reference
from torchproof.measure.numerics.reference import Reference
from torchproof.targets.calls import answers, seed
from torchproof.targets.target import Loaded

# What torch recommends on a GPU is no error of the program under test.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


class Block(nn.Module):
    """Attention by the fused kernels, dropout, and a cast inside the model."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(256), dropout
        self.mix, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(self.norm(x)).view(*x.shape[:2], 3, 4, 64)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(x.shape)).float()
        return x + F.dropout(y, self.dropout).to(x.dtype)


def load(dropout: float, kind: torch.dtype) -> Loaded:
    seed()
    model = Block(dropout).to("cuda", kind)
    x = torch.randn(4, 128, 256, device="cuda", dtype=kind)
    return Loaded(model, [(x,)], None, SimpleNamespace())


def refer(dropout: float, kind: torch.dtype) -> Reference:
    return reference(
        lambda: load(dropout, kind), lambda made: answers(made, made.fn, train=True)
    )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_the_reference_is_float64_with_the_same_dropout(
    dropout: float, kind: torch.dtype
) -> None:
    told = refer(dropout, kind)
    assert told.exact is not None, told.why
    assert told.draws == (dropout > 0)
    for label, value in told.exact.items():
        if not isinstance(value, torch.Tensor):
            continue  # the form of an output
        if "argument" not in label:
            assert value.dtype == torch.float64
        eager = told.eager[label].double()
        off = 0.2 if kind is torch.bfloat16 else 1e-3
        assert_close(
            eager, value.double(), rtol=off, atol=off * float(eager.abs().max())
        )
    if not dropout:
        plain = load(dropout, kind)
        plain.fn.double()
        plain.calls[0] = (plain.calls[0][0].double(),)
        # Called in float64 the model still casts to float32 inside, the reference not.
        for label, value in answers(plain, plain.fn, train=True).items():
            if isinstance(value, torch.Tensor):
                assert_close(told.exact[label], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_training_is_right_and_a_lie_is_caught(
    kind: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    told = refer(0.0, kind)
    made = load(0.0, kind)
    found = answers(made, torch.compile(made.fn), train=True)
    assert told.compare(found).verdict in ("same", "rounding"), told.compare(found)
    found["call 0: output"][1, 2, 3] += 1
    assert told.compare(found).where == "call 0: output"
    assert told.compare(found).verdict == "wrong"
