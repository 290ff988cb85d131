"""A first run that fails leaves nothing behind, and its call gets eager's answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import torchproof
from torchproof.runtime import backend as torchproof_backend


def fails_after_running(graph: Any, inputs: Any) -> Callable[..., Any]:
    def run(args: list[Any]) -> Any:
        graph(*args)
        raise RuntimeError("planted")

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


BACKEND = aot_autograd(
    fw_compiler=fails_after_running, keep_inference_input_mutations=True
)


def writes_to_a_view(
    other: torch.Tensor, left: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    before = other.sum() + left.sum()
    right.add_(1)
    return before + right.sum()


def test_inputs_that_overlap_are_put_back() -> None:
    memory = torch.arange(10.0)
    inputs = torch.ones(3), memory[:6], memory[2:8]
    expected_memory = memory.clone()
    expected_inputs = inputs[0], expected_memory[:6], expected_memory[2:8]
    expected = writes_to_a_view(*expected_inputs)
    compiled = torchproof.compile(writes_to_a_view, backend=BACKEND)
    with torch.no_grad():
        answer = compiled(*inputs)
    assert torch.equal(answer, expected)
    assert torch.equal(memory, expected_memory)
    (fallback,) = torchproof.status(compiled).fallbacks
    assert fallback.kind == "first run"


@pytest.mark.parametrize("backend", ["aot_eager", BACKEND], ids=["works", "fails"])
def test_inputs_are_not_copied_where_memory_lacks(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchproof_backend, "free_bytes", lambda device: 0)
    compiled = torchproof.compile(lambda x: x.add_(1) * 2, backend=backend)
    x = torch.ones(3)
    if backend == "aot_eager":
        assert compiled(x).tolist() == [4.0, 4.0, 4.0]
        assert torchproof.status(compiled).compiled_share == 1
        return
    with torch.no_grad(), pytest.raises(RuntimeError, match="planted"):
        compiled(x)
