"""Functions that compiled code calls on the host, and whose results are tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from torchproof import host_call

EVERY_BACKEND = ["eager", "aot_eager", "inductor"]
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


def positions(lengths: torch.Tensor, size: int = 4) -> torch.Tensor:
    rows = [torch.arange(n).repeat(size)[:size] for n in lengths.tolist()]
    return torch.stack(rows)


def two(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    longest = int(lengths.max())
    return lengths * longest, lengths > longest - 1


def drawn(shape: tuple[int, int], rate: float) -> numpy.ndarray:
    return numpy.random.rand(*shape) < rate


class Net(torch.nn.Module):
    def __init__(self, offset: int = 0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.offset = offset

    def index(self, lengths: torch.Tensor) -> torch.Tensor:
        return lengths + max(lengths.tolist()) + self.offset

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        like = lengths.new_empty(lengths.shape)
        return self.linear(x) * host_call(self.index, lengths, like=like)[:, None]


def compiled(function: Callable[..., Any], backend: str = "aot_eager", **how: Any):
    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True, **how)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_is_as_the_template_says(backend: str) -> None:
    def step(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        like = lengths.new_empty((lengths.shape[0], 5))
        return x[host_call(positions, lengths, size=5, like=like)] * 2

    run = compiled(step, backend)
    for values in ([1, 3], [2, 4], [4, 1]):
        x, lengths = torch.randn(6), torch.tensor(values)
        torch.testing.assert_close(run(x, lengths), step(x, lengths))


def test_sizes_may_vary() -> None:
    def step(lengths: torch.Tensor) -> torch.Tensor:
        return host_call(positions, lengths, like=lengths.new_empty((len(lengths), 4)))

    run = compiled(step, dynamic=True)
    for count in (2, 3, 5):
        lengths = torch.arange(1, count + 1)
        assert torch.equal(run(lengths), positions(lengths))


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_results(backend: str) -> None:
    def step(lengths: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(lengths), torch.empty_like(lengths, dtype=torch.bool)
        products, longest = host_call(two, lengths, like=like)
        return torch.where(longest, products, 0)

    lengths = torch.tensor([3, 1, 2])
    assert torch.equal(compiled(step, backend)(lengths), step(lengths))


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_become_tensors_and_the_random_stream_is_the_same(backend: str) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        like = torch.empty((x.shape[0], 3), dtype=torch.bool)
        first = host_call(drawn, (x.shape[0], 3), 0.5, like=like)
        second = host_call(drawn, (x.shape[0], 3), 0.5, like=like)
        return x * first, x * second

    x, run = torch.randn(4, 3), compiled(step, backend)
    for seed in range(3):
        numpy.random.seed(seed)
        expected = step(x)
        numpy.random.seed(seed)
        torch.testing.assert_close(run(x), expected)


def test_a_method_is_called_on_its_own_object() -> None:
    x, lengths = torch.randn(2, 4), torch.tensor([1, 2])
    torch.compiler.reset()
    for offset in (0, 7):
        net = Net(offset)
        run = torch.compile(net, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(run(x, lengths), net(x, lengths))


def test_gradients_flow_around_the_call() -> None:
    net = Net()
    x, lengths = torch.randn(2, 4), torch.tensor([1, 2])
    net(x, lengths).sum().backward()
    expected = net.linear.weight.grad
    net.zero_grad()
    compiled(net)(x, lengths).sum().backward()
    torch.testing.assert_close(net.linear.weight.grad, expected)


def test_another_shape_is_one_clear_error() -> None:
    def step(lengths: torch.Tensor) -> torch.Tensor:
        return host_call(positions, lengths, like=lengths.new_empty((2, 3)))

    lengths = torch.tensor([1, 2])
    assert step(lengths).shape == (2, 4)
    with pytest.raises(RuntimeError, match=r"positions returned int64\[2, 4\] on cpu"):
        compiled(step)(lengths)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_gradient_is_the_same(backend: str) -> None:
    def step(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(x), torch.empty_like(lengths)
        waved, counted = host_call(waves_of, x * 2, lengths, 0.5, like=like)
        return (waved.exp() * counted).sum()

    run = compiled(step, backend, dynamic=True)
    for size in (3, 4):
        x, lengths = torch.randn(size, 2).T, torch.arange(size)
        gradients = []
        for each in (step, run):
            own = x.clone().requires_grad_()
            each(own, lengths).backward()
            gradients.append(own.grad)
        torch.testing.assert_close(*gradients)


def constants(x: torch.Tensor) -> torch.Tensor:
    return x.detach().sin()


def waves_of(
    x: torch.Tensor, lengths: torch.Tensor, rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * rate).sin() * max(lengths.tolist()), lengths + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_without_a_gradient_gets_none(backend: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(x)
        return (host_call(constants, x, like=like) * x).sum()

    x = torch.randn(3, requires_grad=True)
    compiled(step, backend)(x).backward()
    torch.testing.assert_close(x.grad, x.detach().sin())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_may_be_an_attribute_with_dynamic_sizes(backend: str) -> None:
    class Masked(torch.nn.Module):
        rate = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            like = torch.empty(tuple(x.shape), dtype=torch.bool)
            return x * host_call(drawn, tuple(x.shape), rate=self.rate, like=like)

    net = Masked()
    run = compiled(net, backend, dynamic=True)
    for size in (2, 3):
        x = torch.randn(size, 4)
        numpy.random.seed(size)
        expected = net(x)
        numpy.random.seed(size)
        torch.testing.assert_close(run(x), expected)


def scaled(ids: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    return ids * options["factor"] + options["offset"] * len(options["none"])


def test_a_dictionary_is_an_argument() -> None:
    def step(ids: torch.Tensor) -> torch.Tensor:
        options = {"factor": 3, "offset": ids + 1, "none": {}}
        return host_call(scaled, ids, options, like=torch.empty_like(ids))

    ids = torch.tensor([1, 2])
    assert torch.equal(compiled(step)(ids), step(ids))
