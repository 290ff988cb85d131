"""`verify` answers for every kind of input and output that eager accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime import verification

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
WEIGHT = torch.ones(3, 2)


def dense() -> Tensor:
    return torch.tensor([[1.0, 0, 2], [0, 3, 0]])


def jagged() -> Tensor:
    parts = [torch.ones(2), torch.ones(3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def quantized() -> Tensor:
    return torch.quantize_per_tensor(dense(), 0.1, 0, torch.qint8)


COMPARED: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "coo": (lambda x: x @ WEIGHT, lambda: dense().to_sparse()),
    "csr": (lambda x: x @ WEIGHT, lambda: dense().to_sparse_csr()),
    "csc": (lambda x: x @ WEIGHT, lambda: dense().to_sparse_csc()),
    "bsr": (lambda x: x.to_dense(), lambda: torch.eye(4).to_sparse_bsr((2, 2))),
    "coo output": (lambda x: x * 2, lambda: dense().to_sparse()),
    "csr output": (lambda x: x * 2, lambda: dense().to_sparse_csr()),
    "the input": (lambda x: x, lambda: dense().to_sparse_csr()),
    "coo leaf": (lambda x: (x @ WEIGHT).sum(), lambda: dense().to_sparse()),
    "csr with gradient": (
        lambda x: (x @ WEIGHT).sum(),
        lambda: dense().to_sparse_csr().requires_grad_(),
    ),
    "sparse with gradient": (
        lambda x: x.to_sparse(),
        lambda: dense().requires_grad_(),
    ),
    "empty": (lambda x: x * 2, lambda: torch.sparse_coo_tensor(size=(2, 3))),
    "jagged": (lambda x: x * 2, jagged),
    "quantized": (lambda x: x.dequantize() + 1, quantized),
    "complex": (lambda x: x * 1j, lambda: torch.ones(2, dtype=torch.complex64)),
    "meta": (lambda x: x * 2, lambda: torch.ones(2, device="meta")),
    "no elements": (lambda x: x * 2, lambda: torch.ones(0, 3, requires_grad=True)),
}


def verified(function: Any, *args: Any, **how: Any) -> tuple[Any, Any, Any]:
    """The answer of a verified call, its verification and the status."""
    compiled = torchproof.compile(
        function, **({"backend": "aot_eager", "verify": "first"} | how)
    )
    answer = compiled(*args)
    status = torchproof.status(compiled)
    [found] = status.verifications
    return answer, found, status


def plain(value: Tensor) -> Any:
    if value.is_meta:
        return value.shape
    value = value.detach()
    if value.is_nested:
        return [part.tolist() for part in value.unbind()]
    return (value.to_dense() if value.layout is not torch.strided else value).tolist()


@pytest.mark.parametrize("kind", COMPARED)
def test_tensors_of_every_kind_are_compared(kind: str) -> None:
    function, make = COMPARED[kind]
    answer, found = verification.verified(function, function, (make(),), {})
    assert found.verdict == "same", found
    assert plain(answer) == plain(function(make()))
    if kind not in ("meta", "empty", "no elements"):
        wrong = lambda x: function(x).clone().mul_(2)  # noqa: E731
        if kind == "quantized":
            wrong = lambda x: function(x) + 1  # noqa: E731
        _, found = verification.verified(function, wrong, (make(),), {})
        assert found.verdict == "wrong", found


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_compiled_model_takes_sparse_inputs(layout: Any) -> None:
    x = dense().to_sparse(layout=layout)
    answer, found, _ = verified(lambda x: x @ WEIGHT, x)
    assert torch.equal(answer, dense() @ WEIGHT) and found["verdict"] == "same"


def test_a_sparse_argument_changes_once() -> None:
    def double(x: Tensor) -> Tensor:
        return x.mul_(2)

    for x in (dense().to_sparse(), dense().to_sparse_csr()):
        _, found = verification.verified(double, double, (x,), {})
        assert found.verdict == "same"
        assert plain(x) == (dense() * 2).tolist()


def test_a_sparse_buffer_is_restored() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", dense().to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            self.seen.mul_(2)
            return x + 1

    net = Net()
    verified(net, torch.ones(2))
    assert plain(net.seen) == (dense() * 2).tolist()


# -- what cannot be compared -----------------------------------------------------------


def numbers() -> Iterator[int]:
    yield 1
    yield 2


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = iter(range(1, 10))

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.source)


NOT_COMPARED: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "generator": (lambda: lambda g, x: x * sum(g), lambda: (numbers(), torch.ones(1))),
    "iterator": (lambda: lambda g, x: x * next(g), lambda: (iter([3]), torch.ones(1))),
    "attribute": (Counting, lambda: (torch.ones(1),)),
    "bits": (
        lambda: lambda x: x,
        lambda: (torch.ones(1, dtype=torch.uint8).view(torch.bits8),),
    ),
    "nested": (
        lambda: lambda x: x * 2,
        lambda: (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),),
    ),
}


@pytest.mark.parametrize("kind", NOT_COMPARED)
def test_what_cannot_be_compared_is_answered_and_told(kind: str) -> None:
    make, arguments = NOT_COMPARED[kind]
    answer, found, status = verified(make(), *arguments())
    expected = make()(*arguments())
    if kind == "bits":
        answer, expected = answer.view(torch.uint8), expected.view(torch.uint8)
    assert plain(answer) == plain(expected)
    assert found["verdict"] == "not compared" and found["why"]
    assert status.strategy == "full"


def test_an_iterator_as_output_is_left_to_the_caller() -> None:
    answer, found, status = verified(lambda x: (x * i for i in (1, 2)), torch.ones(1))
    assert [each.item() for each in answer] == [1, 2]
    assert found["verdict"] == "not compared" and status.fallbacks == ()


def test_an_error_of_the_comparison_is_no_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("planted")

    for name in ("edges_of", "pull_back", "save_state"):
        with monkeypatch.context() as patch:
            patch.setattr(verification, name, fails)
            answer, found, _ = verified(
                lambda x: x + 1, torch.ones(2, requires_grad=True)
            )
        assert answer.tolist() == [2, 2] and found["verdict"] == "not compared"
        assert "planted" in found["why"]
