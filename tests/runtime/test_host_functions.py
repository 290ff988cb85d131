"""Functions of the host in compiled code do what they do in eager code.

`raise_if`, `in_graph`, `on_host`, `host_call` and `host_value`.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

from torchproof import host_call, host_value, in_graph, on_host, raise_if

pytestmark = pytest.mark.usefixtures("fresh_compiler")
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


def compiled(
    function: Callable[..., Any], backend: Any = "aot_eager", **more: Any
) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, **{"fullgraph": True} | more)


# -- raise_if and in_graph -------------------------------------------------------------


class Odd(ValueError):
    """An exception of a program."""


def plain_message(ids: Tensor) -> Tensor:
    raise_if((ids > 9).any(), ValueError, "too large: {}")
    return ids + 1


def no_message(ids: Tensor) -> Tensor:
    raise_if(ids.max() > 9, AssertionError)
    return ids + 1


def own_exception(ids: Tensor) -> Tensor:
    raise_if(ids.max() > 9, Odd, "{} is too large", ids.max())
    return ids + 1


def values_of_all_kinds(ids: Tensor) -> Tensor:
    values = ids, ids.shape, ids.dtype, 9.25, "name", ids.shape[0]
    raise_if(ids.max() > 9, IndexError, "{} {} {} {:.1f} {} {:>4}", *values)
    return ids + 1


@in_graph
def check(ids: Tensor, limit: int) -> None:
    if ids.max().item() > limit:
        raise Odd(f"{ids[ids > limit].tolist()} of {limit}")


def own_check(ids: Tensor) -> Tensor:
    check(ids, 9)
    return ids + 1


RAISING = (plain_message, no_message, own_exception, values_of_all_kinds, own_check)


@pytest.mark.parametrize("step", RAISING)
def test_errors_have_the_type_and_the_message_of_eager(step: Any) -> None:
    good, bad = torch.tensor([1, 2]), torch.tensor([1, 12])
    run = compiled(step)
    assert torch.equal(run(good), step(good))
    errors = []
    for each in (step, run):
        with pytest.raises(Exception) as caught:
            each(bad)
        errors.append((type(caught.value), str(caught.value), caught.value.args))
    assert errors[0] == errors[1]


def test_a_dynamic_size_stays_dynamic() -> None:
    def step(ids: Tensor) -> Tensor:
        raise_if(ids.max() > 9, ValueError, "{} of {}", ids.max(), ids.shape[0])
        return ids + 1

    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    run = compiled(step, counter, dynamic=True)
    for length in (3, 4, 5, 6):
        run(torch.ones(length, dtype=torch.long))
    assert counter.frame_count == 1
    with pytest.raises(ValueError, match="10 of 7"):
        run(torch.full((7,), 10))


def test_training_runs_a_check_and_each_call_in_the_graph_once() -> None:
    layer = torch.nn.Linear(2, 2)

    def step(x: Tensor) -> Tensor:
        write("same", x)
        hidden = layer(x)
        write("same", x)
        raise_if(x.isnan().any(), ValueError, "NaN")
        return hidden.sum()

    written.clear()
    run = compiled(step)
    run(torch.ones(1, 2)).backward()
    assert layer.weight.grad is not None and len(written) == 2
    with pytest.raises(ValueError, match="NaN"):
        run(torch.full((1, 2), torch.nan))


written: list[object] = []


@in_graph
def write(*values: Any) -> None:
    written.append(values)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_in_the_graph_has_the_effects_of_eager(backend: str) -> None:
    def step(x: Tensor) -> Tensor:
        write("same")
        write("same")
        write("shape", x.shape, (1.5, None), [True, x.dtype, x.device])
        write(x.mean())
        return x + 1

    def effects(function: Any) -> list[object]:
        written.clear()
        function(torch.ones(2))
        function(torch.zeros(2))
        return list(written)

    assert effects(compiled(step, backend)) == effects(step)


def test_an_argument_that_no_graph_can_hold_is_refused() -> None:
    with pytest.raises(Exception, match="takes tensors, numbers and texts"):
        compiled(lambda x: write({1, 2}) or x + 1, "eager")(torch.ones(2))


class Holder(torch.nn.Module):
    def inner(self, x: Tensor) -> Tensor:
        return x * 2 + 1

    @on_host
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y * y.sum().item()


def test_a_function_on_the_host_is_not_in_the_graph() -> None:
    torch._dynamo.utils.counters.clear()  # which a reset keeps
    counter, holder = torch._dynamo.testing.CompileCounter(), Holder()
    run, x = torch.compile(holder, backend=counter), torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(run(x), holder(x))
    assert counter.frame_count == 1  # of `inner`
    assert not torch._dynamo.utils.counters["graph_break"]


# -- host_call -------------------------------------------------------------------------


def positions(lengths: Tensor, size: int = 4) -> Tensor:
    return torch.stack([torch.arange(n).repeat(size)[:size] for n in lengths.tolist()])


def two(lengths: Tensor) -> tuple[Tensor, Tensor]:
    longest = int(lengths.max())
    return lengths * longest, lengths > longest - 1


def drawn(shape: tuple[int, ...], rate: float) -> numpy.ndarray:
    return numpy.random.rand(*shape) < rate


def waves_of(x: Tensor, lengths: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    return (x * rate).sin() * max(lengths.tolist()), lengths + 1


def constants(x: Tensor) -> Tensor:
    return x.detach().sin()


def scaled(ids: Tensor, options: dict[str, Any]) -> Tensor:
    return ids * options["factor"] + options["offset"] * len(options["none"])


def with_template(lengths: Tensor) -> Tensor:
    like = lengths.new_empty((lengths.shape[0], 5))
    return host_call(positions, lengths, size=5, like=like) * 2


def with_two_results(lengths: Tensor) -> Tensor:
    like = torch.empty_like(lengths), torch.empty_like(lengths, dtype=torch.bool)
    products, longest = host_call(two, lengths, like=like)
    return torch.where(longest, products, 0)


def with_array(lengths: Tensor) -> Tensor:
    shape = (lengths.shape[0], 3)
    like = torch.empty(shape, dtype=torch.bool)
    first = host_call(drawn, shape, 0.5, like=like)
    return lengths[:, None] * first + host_call(drawn, shape, rate=0.5, like=like)


def with_dictionary(lengths: Tensor) -> Tensor:
    options = {"factor": 3, "offset": lengths + 1, "none": {}}
    return host_call(scaled, lengths, options, like=torch.empty_like(lengths))


@pytest.mark.parametrize(
    "step", [with_template, with_two_results, with_array, with_dictionary]
)
def test_results_of_host_calls_are_those_of_eager(step: Any) -> None:
    """The sizes vary, and the random numbers are the same."""
    run = compiled(step, dynamic=True)
    for size in (2, 3, 5):
        lengths = torch.arange(1, size + 1)
        numpy.random.seed(size)
        expected = step(lengths)
        numpy.random.seed(size)
        assert torch.equal(run(lengths), expected)


class Net(torch.nn.Module):
    def __init__(self, offset: int = 0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.offset = offset

    def index(self, lengths: Tensor) -> Tensor:
        return lengths + max(lengths.tolist()) + self.offset

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        like = lengths.new_empty(lengths.shape)
        return self.linear(x) * host_call(self.index, lengths, like=like)[:, None]


def test_a_method_is_called_on_its_own_object_and_gradients_flow_around_it() -> None:
    x, lengths = torch.randn(2, 4), torch.tensor([1, 2])
    for offset in (0, 7):
        net = Net(offset)
        net(x, lengths).sum().backward()
        expected = net.linear.weight.grad
        net.zero_grad()
        compiled(net)(x, lengths).sum().backward()
        torch.testing.assert_close(net.linear.weight.grad, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_host_calls_are_those_of_eager(backend: str) -> None:
    def step(x: Tensor, lengths: Tensor) -> Tensor:
        like = torch.empty_like(x), torch.empty_like(lengths)
        waved, counted = host_call(waves_of, x * 2, lengths, 0.5, like=like)
        constant = host_call(constants, x, like=torch.empty_like(x))
        return (waved.exp() * counted * constant).sum()

    run = compiled(step, backend, dynamic=True)
    for size in (3, 4):
        x, lengths = torch.randn(size, 2).T, torch.arange(size)
        gradients = []
        for each in (step, run):
            own = x.clone().requires_grad_()
            each(own, lengths).backward()
            gradients.append(own.grad)
        torch.testing.assert_close(*gradients)


def test_a_result_of_another_shape_is_one_clear_error() -> None:
    def step(lengths: Tensor) -> Tensor:
        return host_call(positions, lengths, like=lengths.new_empty((2, 3)))

    with pytest.raises(RuntimeError, match=r"positions returned int64\[2, 4\] on cpu"):
        compiled(step)(torch.tensor([1, 2]))


# -- host_value ------------------------------------------------------------------------


@dataclass
class Config:
    layers: int = 2
    names: list[str] = field(default_factory=lambda: ["a", "b"])


SCALE = {"by": 1}


def layout(config: Config) -> tuple[list[str], dict[str, Any]]:
    sizes = (config.layers * SCALE["by"], 2.5, None)
    return ["full"] * config.layers, {"sizes": sizes, "deep": {1: [True]}}


def with_layout(x: Tensor, config: Config) -> tuple[Tensor, Any]:
    kinds, options = host_value(layout, config)
    kinds.append("more")
    options["deep"][2] = []
    return x * len(kinds), (kinds, options)


def test_each_call_gets_new_data_and_changes_compile_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = torch._dynamo.testing.CompileCounter()
    run, config, x = compiled(with_layout, counter), Config(), torch.ones(2)
    results = []
    for layers in (2, 2, 5, 2):
        config.layers = layers
        results.append(run(x, config))
        assert torch.equal(results[-1][0], with_layout(x, config)[0])
        assert results[-1][1] == with_layout(x, config)[1]
    assert len({id(result[1][0]) for result in results}) == 4
    assert counter.frame_count == 2
    monkeypatch.setitem(SCALE, "by", 3)  # outside the arguments
    assert run(x, config)[1] == with_layout(x, config)[1]


def sorted_names(config: Config) -> list[str]:
    return sorted(config.names)


def changed_before(x: Tensor, config: Config) -> Any:
    config.layers = int(config.layers) + 1
    config.names.append("c")
    return x + 1, host_value(layout, config), host_value(sorted_names, config)


def attribute_added_before(x: Tensor, config: Any) -> Any:
    config.scale = 3
    return x + 1, host_value(lambda config: getattr(config, "scale", 0), config)


def shared(x: Tensor, config: Config) -> Any:
    names = host_value(lambda config: config.names, config)
    names.append("more")
    return x + 1, list(config.names)


def an_object(x: Tensor, config: Config) -> Any:
    return x + 1, host_value(copy.deepcopy, config)


def made_here(x: Tensor, config: Config) -> Any:
    return x + 1, host_value(layout, Config(layers=config.layers + 1))


def of_tensor(x: Tensor, config: Config) -> Any:
    return x + 1, host_value(lambda x: x.tolist(), x)


BREAKING = (
    *(changed_before, attribute_added_before, shared, an_object, made_here),
    of_tensor,
)


@pytest.mark.parametrize("function", BREAKING)
def test_what_a_graph_cannot_hold_breaks_it_and_is_right(function: Any) -> None:
    run = compiled(function, "eager", fullgraph=False)
    config, expected = Config(), Config()
    for _ in range(3):
        x = torch.ones(2)
        mine, eager = run(x, config), function(x, expected)
        assert mine[1:] == eager[1:]
        assert config == expected


def test_objects_that_live_for_one_call_are_not_compiled_for() -> None:
    counter = torch._dynamo.testing.CompileCounter()

    def step(x: Tensor, config: Config) -> Any:
        return x + 1, host_value(sorted_names, config)

    run = compiled(step, counter, fullgraph=False)
    for _ in range(6):
        assert run(torch.ones(2), Config())[1] == ["a", "b"]
    assert counter.frame_count <= 4


class Kind(str, enum.Enum):  # noqa: UP042 - its text is not its value
    SMALL = "small"
    LARGE = "large"


class Size(NamedTuple):
    rows: int


def types_of(value: Any) -> list[str]:
    parts = [value, *(value.values() if isinstance(value, dict) else ())]
    return [value if type(value) is str else "", *(type(p).__name__ for p in parts)]


@pytest.mark.parametrize(
    "value",
    [Kind.SMALL, Size(2), {"kind": Kind.LARGE}, "a\0b", (1, 2.5, "a", None, [True]), 7],
)
def test_types_of_arguments_are_kept(value: Any) -> None:
    def step(x: Tensor, value: Any) -> Any:
        return x + 1, host_value(types_of, value)

    run = compiled(step, "eager", fullgraph=False)
    for _ in range(2):
        assert run(torch.ones(1), value)[1] == types_of(value)
