"""Every way in which Python reads state: a change is seen, another one is no matter.

Programs that read classes, attributes and functions are in `read_programs`.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dataclasses
import enum
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest
import read_programs
import torch
from read_programs import PROGRAMS, Program, both, program, setter
from torch import Tensor, nn

import torchproof

X = torch.ones(3)
G: Any = None  # a global for programs that read one


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    for scope in (globals(), vars(read_programs)):
        scope["G"] = None
        scope.pop("len", None)
    for name in ("torchproof_test_settings",):
        sys.modules.pop(name, None)
    os.environ.pop("TORCHPROOF_TEST_SCALE", None)


def use(value: Any) -> Any:
    globals()["G"] = value
    return value


# -- containers ------------------------------------------------------------------------


@program
def own_container() -> Program:
    class Table:
        def __init__(self) -> None:
            self.data, self.other = [2.0], 1

        def __getitem__(self, index: int) -> float:
            return self.data[index]

        def __len__(self) -> int:
            return len(self.data)

    table = Table()
    return lambda x: x * table[0] * len(table), lambda: table.data.append(1.0)


@program
def replaced_data_of_a_container() -> Program:
    class Table:
        def __init__(self) -> None:
            self.data, self.other = [2.0], 1

        def __getitem__(self, index: int) -> float:
            return self.data[index]

    table = Table()
    return (
        lambda x: x * table[0],
        *both(table, "data")[:0],
        setter(table, "data", [5.0]),
    )


@program
def byte_array() -> Program:
    data = bytearray(b"\x02\x07")
    return lambda x: x * data[0], lambda: data.__setitem__(0, 5)


@program
def array_of_numbers() -> Program:
    data = array.array("d", [2.0])
    return lambda x: x * data[0], lambda: data.__setitem__(0, 5.0)


@program
def view_of_memory() -> Program:
    data = bytearray(b"\x02")
    view = memoryview(data)
    return lambda x: x * view[0], lambda: data.__setitem__(0, 5)


@program
def number_of_c() -> Program:
    number = ctypes.c_double(2.0)
    return lambda x: x * number.value, setter(number, "value", 5.0)


@program
def structure_of_c() -> Program:
    class Pair(ctypes.Structure):
        _fields_ = (("scale", ctypes.c_double),)

    pair = Pair(2.0)
    return lambda x: x * pair.scale, setter(pair, "scale", 5.0)


@program
def numpy_array() -> Program:
    data = numpy.array([2.0])
    return lambda x: x * float(data[0]), lambda: data.__setitem__(0, 5.0)


@program
def numpy_array_of_objects() -> Program:
    inner = [2.0]
    data = numpy.array([None], dtype=object)
    data[0] = inner
    return lambda x: x * data[0][0], lambda: inner.__setitem__(0, 5.0)


@program
def chain_map() -> Program:
    first: dict[str, float] = {}
    chain = collections.ChainMap(first, {"scale": 2.0})
    return lambda x: x * chain["scale"], lambda: first.update(scale=5.0)


@program
def mapping_proxy() -> Program:
    inner = {"scale": 2.0}
    proxy = MappingProxyType(inner)
    return lambda x: x * proxy["scale"], lambda: inner.update(scale=5.0)


@program
def user_dict() -> Program:
    table = collections.UserDict(scale=2.0)
    return lambda x: x * table["scale"], lambda: table.update(scale=5.0)


@program
def ordered_dict() -> Program:
    table = collections.OrderedDict(a=2.0, b=3.0)
    return lambda x: x * next(iter(table.values())), lambda: table.move_to_end("a")


@program
def default_dict() -> Program:
    table = collections.defaultdict(lambda: 2.0)
    return lambda x: x * table["a"], lambda: table.update(a=5.0)


@program
def default_of_a_dict() -> Program:
    class Table(collections.defaultdict):  # type: ignore[type-arg]
        def __missing__(self, key: str) -> Any:
            return self.default_factory()  # type: ignore[misc]

    table = Table(lambda: 2.0)
    return lambda x: x * table["a"], setter(table, "default_factory", lambda: 5.0)


@program
def counter() -> Program:
    table = collections.Counter(a=2)
    return lambda x: x * table["a"], lambda: table.update(a=3)


@program
def deque() -> Program:
    items = collections.deque([2.0, 5.0])
    return lambda x: x * items[0], lambda: items.rotate(1)


@program
def subclass_of_list() -> Program:
    class Items(list):  # type: ignore[type-arg]
        scale = 2.0

        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("the comparison runs code of the user")

        __len__ = None  # type: ignore[assignment]

    items = Items([2.0])
    return lambda x: x * items[0], lambda: items.__setitem__(0, 5.0)


@program
def moved_between_lists() -> Program:
    one, other = [1.0], [2.0, 3.0]
    return (
        lambda x: x * (10 * len(one) + len(other)),
        lambda: one.append(other.pop(0)),
    )


@program
def sets() -> Program:
    flags = {"a"}
    return lambda x: x * (2 if "b" in flags else 3), lambda: flags.add("b")


@program
def dict_in_a_dict() -> Program:
    table: dict[str, Any] = {"a": [{"scale": 2.0}]}
    return lambda x: x * table["a"][0]["scale"], lambda: table["a"][0].update(scale=5.0)


@program
def object_as_a_key() -> Program:
    class Key:
        weight = 2.0

    key = Key()
    table = {key: 1}
    return lambda x: x * sum(k.weight for k in table), setter(key, "weight", 5.0)


@program
def named_tuple() -> Program:
    class Config(NamedTuple):
        scale: list[float]

    config = Config([2.0])
    return lambda x: x * config.scale[0], lambda: config.scale.__setitem__(0, 5.0)


@program
def data_class() -> Program:
    @dataclasses.dataclass
    class Config:
        scale: float = 2.0
        other: int = 1

    config = Config()
    return lambda x: x * config.scale, *both(config)


@program
def negative_zero() -> Program:
    o = SimpleNamespace(scale=0.0)
    return lambda x: 1 / (x * o.scale), setter(o, "scale", -0.0)


@program
def member_of_an_enum() -> Program:
    class Mode(enum.Enum):
        A = 2
        B = 5

    o = SimpleNamespace(mode=Mode.A)
    return lambda x: x * o.mode.value, setter(o, "mode", Mode.B)


# -- modules, environment, context -----------------------------------------------------


@program
def attribute_of_a_python_module() -> Program:
    module: Any = ModuleType("torchproof_test_settings")
    module.scale, module.other = 2.0, 1
    use(module)
    return lambda x: x * G.scale, *both(module)


@program
def imported_in_the_step() -> Program:
    module: Any = ModuleType("torchproof_test_settings")
    module.scale, module.other = 2.0, 1
    sys.modules["torchproof_test_settings"] = module

    def step(x: Tensor) -> Tensor:
        import torchproof_test_settings as settings  # type: ignore[import-not-found]

        return x * settings.scale

    return step, *both(module)


@program
def from_import_in_the_step() -> Program:
    module: Any = ModuleType("torchproof_test_settings")
    module.scale, module.other = 2.0, 1
    sys.modules["torchproof_test_settings"] = module

    def step(x: Tensor) -> Tensor:
        from torchproof_test_settings import scale

        return x * scale

    return step, *both(module)


@program
def by_sys_modules() -> Program:
    module: Any = ModuleType("torchproof_test_settings")
    module.scale, module.other = 2.0, 1
    sys.modules["torchproof_test_settings"] = module
    return lambda x: x * sys.modules["torchproof_test_settings"].scale, *both(module)


@program
def by_globals() -> Program:
    use(2.0)
    return lambda x: x * globals()["G"], lambda: use(5.0)


@program
def environment() -> Program:
    os.environ["TORCHPROOF_TEST_SCALE"] = "2"
    return (
        lambda x: x * float(os.environ.get("TORCHPROOF_TEST_SCALE", "1")),
        lambda: os.environ.update(TORCHPROOF_TEST_SCALE="5"),
    )


@program
def getenv() -> Program:
    return (
        lambda x: x * float(os.getenv("TORCHPROOF_TEST_SCALE", "1")),
        lambda: os.environ.update(TORCHPROOF_TEST_SCALE="5"),
    )


@program
def context_variable() -> Program:
    scale = contextvars.ContextVar("scale", default=2.0)
    return lambda x: x * scale.get(), lambda: scale.set(5.0)


@program
def thread_local() -> Program:
    local = threading.local()
    local.scale = 2.0
    return lambda x: x * local.scale, setter(local, "scale", 5.0)


@program
def weak_reference() -> Program:
    class Thing:
        def __init__(self) -> None:
            self.scale, self.other = 2.0, 1

    holder = [Thing()]
    reference = weakref.ref(holder[0])

    def step(x: Tensor) -> Tensor:
        thing = reference()
        return x * (thing.scale if thing is not None else 7.0)

    return step, holder.clear, setter(holder[0], "other", 2)


@program
def attribute_behind_a_weak_reference() -> Program:
    class Thing:
        def __init__(self) -> None:
            self.scale, self.other = 2.0, 1

    thing = Thing()
    reference = weakref.ref(thing)
    return lambda x: x * reference().scale, *both(thing)  # type: ignore[union-attr]


@program
def function_of_torch() -> Program:
    m = nn.Sequential(nn.ReLU())
    plain = nn.functional.relu

    def change() -> None:
        nn.functional.relu = lambda x, inplace=False: x * 3

    def step(x: Tensor) -> Tensor:
        return m(x)

    step.undo = lambda: setattr(nn.functional, "relu", plain)  # type: ignore[attr-defined]
    return step, change


@program
def global_hook() -> Program:
    m, handles = nn.Sequential(nn.ReLU()), []

    def change() -> None:
        handles.append(
            nn.modules.module.register_module_forward_hook(
                lambda module, args, output: output * 3
            )
        )

    def step(x: Tensor) -> Tensor:
        return m(x)

    step.undo = lambda: [each.remove() for each in handles]  # type: ignore[attr-defined]
    return step, change


@program
def global_hook_removed() -> Program:
    m = nn.Sequential(nn.ReLU())
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, args: (args[0] * 3,)
    )

    def step(x: Tensor) -> Tensor:
        return m(x)

    step.undo = handle.remove  # type: ignore[attr-defined]
    return step, handle.remove


@program
def hook_of_a_module() -> Program:
    m = nn.Sequential(nn.ReLU())
    return m, lambda: m[0].register_forward_hook(lambda module, args, out: out * 3)


@program
def object_of_torch() -> Program:
    normal = torch.distributions.Normal(
        torch.zeros(3), torch.ones(3), validate_args=False
    )
    return lambda x: normal.log_prob(x), setter(normal, "loc", torch.ones(3) * 5)


@program
def gradient_that_is_read() -> Program:
    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones(3) * 2
    return lambda x: x * w.grad, setter(w, "grad", torch.ones(3) * 5)


@program
def autocast() -> Program:
    state = torch.autocast("cpu", torch.bfloat16)
    m = nn.Linear(3, 3)

    def step(x: Tensor) -> Tensor:
        return m(x)

    step.undo = lambda: state.__exit__(None, None, None)  # type: ignore[attr-defined]
    state.__enter__()
    state.__exit__(None, None, None)
    return step, state.__enter__


@program
def default_device() -> Program:
    def step(x: Tensor) -> Tensor:
        return torch.ones(3) if x.device.type == "cpu" else x

    step.undo = lambda: torch.set_default_device(None)  # type: ignore[attr-defined]
    return step, lambda: torch.set_default_device("meta")


# -- the tests -------------------------------------------------------------------------


def same(given: Tensor, expected: Tensor, told: object) -> None:
    assert given.dtype == expected.dtype and given.device == expected.device, told
    if given.device.type != "meta":
        assert torch.equal(given, expected.detach()), told


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_change_is_seen(name: str) -> None:
    step, change = PROGRAMS[name]()[:2]
    graphed = torchproof.graph(step)
    try:
        for _ in range(2):
            same(graphed(X), step(X), graphed.status())
        assert graphed.status().replays == 2, graphed.status()
        before = step(X)
        change()
        after = step(X)
        for _ in range(2):
            same(graphed(X), after, graphed.status())
        assert after.device.type == "meta" or not torch.equal(before, after), (
            "no change"
        )
    finally:
        getattr(step, "undo", lambda: None)()


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_change_is_no_matter(name: str) -> None:
    step, *changes = PROGRAMS[name]()
    try:
        if len(changes) < 2:
            return
        graphed = torchproof.graph(step)
        graphed(X)
        changes[1]()
        same(graphed(X), step(X), graphed.status())
        status = graphed.status()
        assert (status.recordings, status.replays) == (1, 2), status
    finally:
        getattr(step, "undo", lambda: None)()
