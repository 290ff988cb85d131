"""Numbers in host memory: recorded if every replay has the same, otherwise refused.

The meta device takes the place of the GPU: operations on it also read host tensors
without dimensions as numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.eager_recorder import EagerRecorder
from torchproof.runtime.cudagraph.executed_code import Execution

META = torch.device("meta")
OUTSIDE = torch.tensor(2.0)
LIST = torch.tensor([2.0, 3.0])
COUNT = torch.tensor(2)
UNKNOWN = torch.tensor(2.0)  # not among the tensors that the recorder was told of
WITH_GRADIENT = torch.tensor(2.0, requires_grad=True)
WITH_GRADIENT.grad = torch.tensor(3.0)
ARRAY = numpy.array(2.0)
X = torch.ones(2, 3, device=META)


def stops_of(step: Callable[[Tensor], Any], *outside: Tensor) -> list[str]:
    """The reasons against a recording of one run on the meta device."""
    recorder = EagerRecorder(META, [OUTSIDE, LIST, COUNT, *outside])
    ran = Execution(recorder.handle_read)
    with recorder, ran:
        step(X)
    return [stop.reason for stop in recorder.stops]


def script(function: Callable[..., Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still in use
        return torch.jit.script(function)


def times_a_number(x: Tensor) -> Tensor:
    return x * torch.tensor(2.0)


def assigns_a_number(x: Tensor) -> None:
    x[..., 0] = 5


def fills_with_a_number(x: Tensor) -> None:
    x[..., 0].fill_(torch.tensor(5))  # as `x[..., 0] = 5` does on CUDA before 2.14


def assigns_where_masked(x: Tensor) -> None:
    torch.ops.aten.index_put_(x, [x > 0], torch.tensor(5.0))


def computes_on_the_host(x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)


def writes_its_own_memory(x: Tensor) -> Tensor:
    scale = torch.zeros(())
    scale.fill_(2.0)
    scale += 1
    return x * scale


def reads_its_own_number(x: Tensor) -> Tensor:
    return x * torch.arange(3).max().item()


def takes_from_an_array(x: Tensor) -> Tensor:
    return x * torch.tensor(ARRAY)


def drops_no_layer(x: Tensor) -> Tensor:
    return x if torch.rand([]) < 0.0 else x * 2


@script
def scripted(x: Tensor, factor: int) -> Tensor:
    return torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * factor)


@script
def scripted_constant(x: Tensor) -> Tensor:
    return x * torch.tensor([2.0])[0]


@script
def scripted_random(x: Tensor) -> Tensor:
    return x * torch.rand([1])[0]


@script
def scripted_product(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


def calls_a_script(x: Tensor) -> Tensor:
    return scripted_constant(x / scripted(x, 3))


def lists_its_own_numbers(x: Tensor) -> Tensor:
    return x * sum(torch.ones(3).tolist())


@pytest.mark.parametrize(
    "step",
    [
        times_a_number,
        assigns_a_number,
        fills_with_a_number,
        assigns_where_masked,
        computes_on_the_host,
        writes_its_own_memory,
        reads_its_own_number,
        takes_from_an_array,
        drops_no_layer,
        calls_a_script,
        lists_its_own_numbers,
    ],
)
def test_a_number_from_python_is_the_same_in_every_replay(
    step: Callable[[Tensor], Any],
) -> None:
    assert stops_of(step) == []


def times_outside(x: Tensor) -> Tensor:
    return x * OUTSIDE


def fills_with_outside(x: Tensor) -> None:
    x[..., 0].fill_(OUTSIDE)


def masked_with_outside(x: Tensor) -> None:
    torch.ops.aten.index_put_(x, [x > 0], OUTSIDE)


def times_computed_from_outside(x: Tensor) -> Tensor:
    return x * (OUTSIDE + 1)


def times_a_copy_of_outside(x: Tensor) -> Tensor:
    return x * OUTSIDE.clone().detach()


def times_a_part_of_outside(x: Tensor) -> Tensor:
    return x * LIST[0]


def lifts_outside(x: Tensor) -> Tensor:
    lifted: Tensor = torch.ops.aten.lift_fresh(OUTSIDE)
    return x * lifted


def writes_outside_into_its_own(x: Tensor) -> Tensor:
    scale = torch.zeros(())
    scale.copy_(OUTSIDE)
    return x * scale


def lists_outside_in_a_tensor(x: Tensor) -> Tensor:
    return x * torch.tensor([OUTSIDE, 1.0])[0]


def asks_outside(x: Tensor) -> Tensor:
    return x * OUTSIDE.item()


def branches_on_outside(x: Tensor) -> Tensor:
    return x if OUTSIDE > 1 else -x


def slices_by_outside(x: Tensor) -> Tensor:
    return x[: int(COUNT)]


def lists_outside(x: Tensor) -> Tensor:
    return x * LIST.tolist()[0]


def takes_outside_to_numpy(x: Tensor) -> Tensor:
    return x * float(LIST.numpy()[0])


def converts_outside_to_numpy(x: Tensor) -> Tensor:
    return x * float(numpy.asarray(LIST)[0])


def counts_outside(x: Tensor) -> Tensor:
    return x * len(LIST.nonzero())


def takes_outside_by_mask(x: Tensor) -> Tensor:
    return x * len(LIST[LIST > 2])


def compares_outside(x: Tensor) -> Tensor:
    return x * torch.equal(LIST, LIST)


def draws(x: Tensor) -> Tensor:
    return x * torch.rand(())


def draws_into_memory(x: Tensor) -> Tensor:
    return x * torch.zeros(()).uniform_()


def drops_a_layer(x: Tensor) -> Tensor:
    return x if torch.rand([]) < 0.1 else x * 2


def passes_outside_to_a_script(x: Tensor) -> Tensor:
    return scripted_product(x, OUTSIDE)


def passes_an_unknown_tensor_to_a_script(x: Tensor) -> Tensor:
    return scripted_product(x, UNKNOWN)


def draws_in_a_script(x: Tensor) -> Tensor:
    return scripted_random(x)


def times_unknown(x: Tensor) -> Tensor:
    return x * UNKNOWN


def times_a_gradient(x: Tensor) -> Tensor:
    return x * WITH_GRADIENT.grad  # type: ignore[operator]


@pytest.mark.parametrize(
    "step",
    [
        passes_outside_to_a_script,
        passes_an_unknown_tensor_to_a_script,
        draws_in_a_script,
        times_unknown,
        times_a_gradient,
        times_outside,
        fills_with_outside,
        masked_with_outside,
        times_computed_from_outside,
        times_a_copy_of_outside,
        times_a_part_of_outside,
        lifts_outside,
        writes_outside_into_its_own,
        lists_outside_in_a_tensor,
        asks_outside,
        branches_on_outside,
        slices_by_outside,
        lists_outside,
        takes_outside_to_numpy,
        converts_outside_to_numpy,
        counts_outside,
        takes_outside_by_mask,
        compares_outside,
        draws,
        draws_into_memory,
        drops_a_layer,
    ],
)
def test_a_number_that_may_differ_is_refused(step: Callable[[Tensor], Any]) -> None:
    reasons = stops_of(step)
    assert reasons and "CPU memory" in reasons[0]


def test_an_operator_of_the_user_may_return_anything() -> None:
    with torch.library._scoped_library("torchproof_tests", "FRAGMENT") as library:
        library.define("number() -> Tensor")
        library.impl("number", lambda: torch.tensor(3.0), "CompositeExplicitAutograd")
        operator = torch.ops.torchproof_tests.number
        assert stops_of(lambda x: x * operator()) != []


def test_what_an_operator_on_the_device_returns_on_the_host_is_its_own() -> None:
    """Attention returns the state of its generator there, for its backward."""
    with torch.library._scoped_library("torchproof_tests", "FRAGMENT") as library:
        library.define("seed(Tensor x) -> Tensor")
        library.impl("seed", lambda x: torch.zeros(()), "Meta")
        operator = torch.ops.torchproof_tests.seed
        assert stops_of(lambda x: x * operator(x)) == []


def test_memory_of_a_random_number_may_be_used_again() -> None:
    def step(x: Tensor) -> Tensor:
        for number in range(20):
            torch.rand([])
            x = x * torch.tensor(float(number))
        return x

    assert stops_of(step) == []


# -- numbers that change between calls, with recordings on the CPU ---------------------


class Started(nn.Module):
    """Shifts its input and starts it with a number, as encoder-decoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 2

    def forward(self, ids: Tensor) -> Tensor:
        shifted = torch.zeros_like(ids)
        shifted[..., 1:] = ids[..., :-1]
        shifted[..., 0] = self.start
        shifted[shifted == -100] = 1
        return shifted


def test_an_assigned_attribute_that_changes_is_recorded_again() -> None:
    model = Started()
    graphed = torchproof.graph(model)
    for call, start in enumerate((2, 2, 7, 7, 2)):
        model.start = start
        ids = torch.arange(12).view(2, 6) + call
        ids[0, call] = -100
        assert torch.equal(graphed(ids), model(ids))
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (2, 5, ())


def test_an_assigned_argument_that_changes_is_recorded_again() -> None:
    def step(x: Tensor, start: int) -> Tensor:
        y = x.clone()
        y[..., 0] = start
        return y * torch.tensor(float(start))

    graphed = torchproof.graph(step)
    for start in (1, 2, 1):
        x = torch.randn(2, 3)
        assert torch.equal(graphed(x, start), step(x, start))
    assert (graphed.status().recordings, graphed.status().stops) == (2, ())


def test_a_module_of_torchscript_runs_without_a_recording() -> None:
    """Its attributes are in C++, where a change of its numbers is not seen."""
    model = script(nn.Linear(3, 3))
    for step in (model, nn.Sequential(model)):
        graphed = torchproof.graph(step)
        x = torch.ones(2, 3)
        torch.testing.assert_close(graphed(x), step(x).detach())
        assert graphed.status().replays == 0
        assert "TorchScript" in graphed.status().stops[0].reason
