"""The form of the arguments of a call: what decides what is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchproof.observe.entry_calls import form_of

X = torch.zeros(4, 8)


@pytest.mark.parametrize(
    ("args", "kwargs", "form"),
    [
        ((X, 3, 1.5, None, "name"), {}, "float32[4, 8], 3, float, None, str"),
        ((), {"mask": X > 0, "flag": True}, "mask=bool[4, 8], flag=True"),
        (([X, (X[0], 2)],), {}, "(float32[4, 8], (float32[8], 2))"),
        (({"ids": X[:, 0].long()},), {}, "(ids=int64[4])"),
        ((X.t(),), {}, "float32[8, 4]"),
        ((object(),), {}, "object"),
    ],
)
def test_form_has_sizes_types_and_integers(
    args: tuple[Any, ...], kwargs: dict[str, Any], form: str
) -> None:
    assert form_of(args, kwargs) == form


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_form_is_short_for_any_argument() -> None:
    nested = torch.nested.nested_tensor([X, X[:2]])
    assert form_of((nested, X.to_sparse()), {})
    many = [form_of([X] * 60 + [last], {}) for last in (X, X[0])]
    assert many[0] != many[1] and all(len(each) < 250 for each in many)
