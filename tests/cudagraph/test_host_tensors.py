"""Numbers in host memory: recorded if every replay has the same, otherwise refused.

The meta device takes the place of the GPU: operations on it also read host tensors
without dimensions as numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.eager_recorder import EagerRecorder
from torchproof.runtime.cudagraph.executed_code import Execution

META = torch.device("meta")
OUTSIDE = torch.tensor(2.0)
LIST = torch.tensor([2.0, 3.0])
COUNT = torch.tensor(2)
UNKNOWN = torch.tensor(2.0)  # not among the tensors that the recorder knows
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


def assigns_a_number(x: Tensor) -> None:
    x[..., 0] = 5


def writes_its_own_memory(x: Tensor) -> Tensor:
    scale = torch.zeros(())
    scale.fill_(2.0)
    scale += 1
    return x * scale


def writes_outside_into_its_own(x: Tensor) -> Tensor:
    scale = torch.zeros(())
    scale.copy_(OUTSIDE)
    return x * scale


ATEN: Any = torch.ops.aten
Step = Callable[[Tensor], Any]
CONSTANT: dict[str, Step] = {
    "times": lambda x: x * torch.tensor(2.0),
    "assignment": assigns_a_number,
    # As `x[..., 0] = 5` does on CUDA before 2.14.
    "fill": lambda x: x[..., 0].fill_(torch.tensor(5)),
    "mask": lambda x: ATEN.index_put_(x, [x > 0], torch.tensor(5.0)),
    "computed on the host": lambda x: (
        x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)
    ),
    "own memory": writes_its_own_memory,
    "own item": lambda x: x * torch.arange(3).max().item(),
    "own list": lambda x: x * sum(torch.ones(3).tolist()),
    "array": lambda x: x * torch.tensor(ARRAY),
    "random number that decides nothing": lambda x: (
        x if torch.rand([]) < 0.0 else x * 2
    ),
    "TorchScript": lambda x: scripted_constant(x / scripted(x, 3)),
}
VARYING: dict[str, Step] = {
    "times": lambda x: x * OUTSIDE,
    "fill": lambda x: x[..., 0].fill_(OUTSIDE),
    "mask": lambda x: ATEN.index_put_(x, [x > 0], OUTSIDE),
    "computed": lambda x: x * (OUTSIDE + 1),
    "copy": lambda x: x * OUTSIDE.clone().detach(),
    "part": lambda x: x * LIST[0],
    "lifted": lambda x: x * ATEN.lift_fresh(OUTSIDE),
    "written to own memory": writes_outside_into_its_own,
    "listed in a tensor": lambda x: x * torch.tensor([OUTSIDE, 1.0])[0],
    "item": lambda x: x * OUTSIDE.item(),
    "branch": lambda x: x if OUTSIDE > 1 else -x,
    "size": lambda x: x[: int(COUNT)],
    "list": lambda x: x * LIST.tolist()[0],
    "numpy": lambda x: x * float(LIST.numpy()[0]),
    "numpy.asarray": lambda x: x * float(numpy.asarray(LIST)[0]),
    "nonzero": lambda x: x * len(LIST.nonzero()),
    "taken by mask": lambda x: x * len(LIST[LIST > 2]),
    "equal": lambda x: x * torch.equal(LIST, LIST),
    "unknown tensor": lambda x: x * UNKNOWN,
    "gradient": lambda x: x * WITH_GRADIENT.grad,  # type: ignore[operator]
    "random number": lambda x: x * torch.rand(()),
    "random number in memory": lambda x: x * torch.zeros(()).uniform_(),
    "random number that decides": lambda x: x if torch.rand([]) < 0.1 else x * 2,
    "argument of TorchScript": lambda x: scripted_product(x, OUTSIDE),
    "unknown argument of TorchScript": lambda x: scripted_product(x, UNKNOWN),
    "random number in TorchScript": lambda x: scripted_random(x),
}


def test_a_number_from_python_is_the_same_in_every_replay() -> None:
    assert {name: stops_of(step) for name, step in CONSTANT.items()} == {
        name: [] for name in CONSTANT
    }


def test_a_number_that_may_differ_is_refused() -> None:
    for name, step in VARYING.items():
        reasons = stops_of(step)
        assert reasons and "CPU memory" in reasons[0], name


def test_an_operator_of_the_user_may_return_anything() -> None:
    with torch.library._scoped_library("torchproof_tests", "FRAGMENT") as library:
        library.define("number() -> Tensor")
        library.impl("number", lambda: torch.tensor(3.0), "CompositeExplicitAutograd")
        # Attention returns the state of its generator on the host, for its backward.
        library.define("seed(Tensor x) -> Tensor")
        library.impl("seed", lambda x: torch.zeros(()), "Meta")
        operators = torch.ops.torchproof_tests
        assert stops_of(lambda x: x * operators.number()) != []
        assert stops_of(lambda x: x * operators.seed(x)) == []


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


def test_an_assigned_attribute_that_changes_is_recorded_again(device: str) -> None:
    model = Started()
    graphed = torchproof.graph(model)
    for call, start in enumerate((2, 2, 7, 7, 2)):
        model.start = start
        ids = torch.arange(12, device=device).view(2, 6) + call
        ids[0, call] = -100
        assert torch.equal(graphed(ids), model(ids))
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (2, 5, ())
