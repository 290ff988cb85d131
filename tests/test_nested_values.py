"""Values that hold themselves, or lie deep inside one another, are no trouble."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime import vector_jacobian
from torchproof.runtime.cudagraph import call_inputs
from torchproof.runtime.forward_state import save_state
from torchproof.torch_private import tree_specs
from torchproof.torch_private.trees import mapped, tensor_paths, tensors, walk

DEEP = 1_100  # above the limit on recursion


def looped_dict(x: Tensor) -> Any:
    value: dict[str, Any] = {"x": x}
    value["self"] = value
    return value


def looped_list(x: Tensor) -> Any:
    value: list[Any] = [x]
    value.append((value, {"up": value}))
    return value


def looped_object(x: Tensor) -> Any:
    value = SimpleNamespace(x=x)
    value.up = [value]
    return {"x": x, "held": value}


def deep(x: Tensor) -> Any:
    value: Any = [x]
    for _ in range(DEEP):
        value = {"inner": [value]}
    return {"x": x, "deep": value}


MAKERS = (looped_dict, looped_list, looped_object, deep)
Make = Callable[[Tensor], Any]
every_value = pytest.mark.parametrize("make", MAKERS)


def x_of(value: Any) -> Tensor:
    found: Tensor = value["x"] if isinstance(value, dict) else value[0]
    return found


class Net(nn.Module):
    """Returns its argument and another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, value: Any) -> Any:
        return {"y": self.inner(x_of(value)).sin(), "same": value}


@every_value
def test_every_part_of_a_value_is_walked_once_and_copied(make: Make) -> None:
    x = torch.ones(2)
    value = make(x)
    parts = list(walk(value, "input", objects=True))
    labels = [label for label, _ in parts]
    assert len(set(labels)) == len(labels) and max(map(len, labels)) < 600
    assert any(part is x for _, part in parts)
    assert len(parts) > DEEP or make in MAKERS[:3]
    assert all(each is x for each in tensors(value))
    assert all(each is x for _, each in tensor_paths(value))
    save_state(None, (value,), {}).restore()
    copied = call_inputs.map_tensors(value, Tensor.clone)
    again = list(walk(copied, objects=True))
    assert len(again) == len(parts)
    found = [part for _, part in again if isinstance(part, Tensor)]
    assert found and all(part is x_of(copied) is not x for part in found)
    with pytest.raises(tree_specs.Unfit):  # a pack refuses what has no end
        tree_specs.flatten(value, [], "input")


@every_value
def test_tensors_with_a_history_are_replaced_in_any_value(make: Make) -> None:
    plain = make(torch.ones(2))
    assert vector_jacobian.apart_from_history(plain) is plain
    x = torch.ones(2, requires_grad=True) * 2
    value = make(x)
    fresh = vector_jacobian.apart_from_history(value)
    assert fresh is not value and x_of(value) is x
    assert x_of(fresh) is not x and torch.equal(x_of(fresh), x)
    if make is looped_dict:
        assert fresh["self"] is fresh
    if make is looped_list:
        assert fresh[1][0] is fresh and fresh[1][1]["up"] is fresh


def test_only_what_holds_a_tensor_with_a_history_is_made_anew() -> None:
    x, plain = torch.ones(2, requires_grad=True) * 2, [torch.ones(2)]
    value = {"plain": plain, "x": (x, [x]), "n": 3}
    fresh = vector_jacobian.apart_from_history(value)
    assert fresh["plain"] is plain and fresh["n"] == 3
    assert fresh["x"][0] is fresh["x"][1][0] and fresh["x"][0] is not x


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (looped_dict, {"verify": 1}),
        (looped_list, {"verify": "first", "strategy": "regional"}),
        (looped_object, {}),
        (deep, {"strategy": "regional"}),
    ],
)
def test_a_compiled_model_takes_and_returns_any_value(
    make: Make, settings: dict[str, Any]
) -> None:
    torch._dynamo.reset()
    plain = Net()
    model = torchproof.compile(Net(), backend="eager", deadline=60, **settings)
    model.load_state_dict(plain.state_dict())
    for _ in range(2):
        value = make(torch.ones(2))
        answer = model(value)
        assert answer["same"] is value
        assert torch.equal(answer["y"], plain(value)["y"])
    status = torchproof.status(model)
    str(status), status.to_json()
    assert all(each["verdict"] != "wrong" for each in status.verifications)


@every_value
def test_a_graph_refuses_such_a_call_and_runs_it(make: Make) -> None:
    value = make(torch.ones(2))
    assert (
        call_inputs.key_of(((value,), {})) == call_inputs.TOO_DEEP
        or make is looped_object
    )
    step = torchproof.graph(Net())
    for _ in range(2):
        assert type(step(value)["same"]) is type(value)
    with torchproof.step() as each:
        assert each.run(Net(), value)["same"] is value


# -- kinds of containers ---------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Frozen:
    inner: Any
    size: int = 3


@dataclass(slots=True)
class Slotted:
    inner: Any


class Output(OrderedDict[str, Any]):
    """As transformers' outputs: a dict whose keys are attributes as well."""


class Registered:
    def __init__(self, inner: Any) -> None:
        self._inner = (inner,)


torch.utils._pytree.register_pytree_node(
    Registered,
    lambda value: ([value._inner[0]], None),
    lambda parts, _: Registered(*parts),
    serialized_type_name="tests.Registered",
)
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "output.left": lambda x: Pair(x, 1),
    "output.inner": Frozen,
    "output.inner ": Slotted,
    "output.x": lambda x: Output(x=x),
    "output.0": lambda x: deque([x]),
    "output.0 ": Registered,
    "output.inner.0.left.inner": lambda x: Frozen([Pair(Slotted(x), ())]),
    "output.a.1": lambda x: defaultdict(list, a=[0, x]),
    "output.values": lambda x: torch.return_types.max((x, x)),
}


@pytest.mark.parametrize(("label", "make"), CONTAINERS.items())
def test_every_kind_of_container_is_entered_and_made_again(
    label: str, make: Make
) -> None:
    x = torch.ones(2)
    value = make(x)
    names = [name for name, part in walk(value, "output") if part is x]
    assert label.strip() in (*names, "output.values") and list(tensors(value))
    fresh = mapped(value, lambda leaf: leaf * 2 if leaf is x else leaf)
    assert type(fresh) is type(value)
    (old, *_), (new, *_) = tensors(value), tensors(fresh)
    assert old is x and torch.equal(new, x * 2)


def test_sets_and_objects_are_made_again_on_request() -> None:
    x = torch.ones(2)
    (fresh,) = mapped({x}, lambda leaf: leaf * 2)
    assert torch.equal(fresh, x * 2) and not list(tensors({x}))  # a set has no labels
    value = SimpleNamespace(x=x, inner=SimpleNamespace(n=1))
    assert not list(tensors(value)) and list(tensors(value, objects=True)) == [x]
    fresh = mapped(value, lambda leaf: leaf * 2 if leaf is x else leaf, objects=True)
    assert torch.equal(fresh.x, x * 2) and value.x is x and fresh.inner is value.inner
