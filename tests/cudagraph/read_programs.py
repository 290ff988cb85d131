"""Steps that read state of classes, attributes and functions, and how it changes.

Each program is a function that returns a step, a change that the step sees, and, where
there is one, a change of something beside it that the step does not see.
"""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor, nn

Change = Callable[[], Any]
Program = tuple[Callable[[Tensor], Tensor], Change] | tuple[Any, Change, Change]
PROGRAMS: dict[str, Callable[[], Program]] = {}
G: Any = None  # a global for programs that read one


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def setter(owner: Any, name: str, value: Any) -> Change:
    return lambda: setattr(owner, name, value)


def both(owner: Any, name: str = "scale") -> tuple[Change, Change]:
    return setter(owner, name, 5.0), setter(owner, "other", 7)


def use(value: Any) -> Any:
    globals()["G"] = value
    return value


# -- classes ---------------------------------------------------------------------------


@program
def class_attribute() -> Program:
    class Config:
        scale = 2.0
        other = 1

    return lambda x: x * Config.scale, *both(Config)


@program
def global_class() -> Program:
    class Config:
        scale = 2.0
        other = 1

    use(Config)
    return lambda x: x * G.scale, *both(Config)


@program
def base_class() -> Program:
    class Base:
        scale = 2.0
        other = 1

    class Config(Base):
        pass

    return lambda x: x * Config.scale, *both(Base)


@program
def shadowed_in_subclass() -> Program:
    class Base:
        scale = 2.0

    class Config(Base):
        pass

    config = Config()
    return (
        lambda x: x * config.scale,
        setter(Config, "scale", 5.0),
        setter(Config, "b", 1),
    )


@program
def static_method() -> Program:
    class Tools:
        @staticmethod
        def scale() -> float:
            return 2.0

    def change() -> None:
        Tools.scale = staticmethod(lambda: 5.0)  # type: ignore[assignment]

    return lambda x: x * Tools.scale(), change, setter(Tools, "other", 1)


@program
def class_method() -> Program:
    class Tools:
        factor = 2.0
        other = 1

        @classmethod
        def scale(cls) -> float:
            return cls.factor

    return lambda x: x * Tools.scale(), *both(Tools, "factor")


@program
def metaclass() -> Program:
    class Meta(type):
        factor = 2.0
        other = 1

        @property
        def scale(cls) -> float:
            return cls.factor

    class Config(metaclass=Meta):
        pass

    return lambda x: x * Config.scale, *both(Meta, "factor")


@program
def class_of_an_object() -> Program:
    class A:
        pass

    class B(A):
        pass

    o = A()
    return (
        lambda x: x * (2 if isinstance(o, B) else 3),
        lambda: setattr(o, "__class__", B),
    )


@program
def class_of_a_module() -> Program:
    class A(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class B(A):
        def forward(self, x: Tensor) -> Tensor:
            return x * 3

    m = A()
    return m, lambda: setattr(m, "__class__", B)


@program
def bases_of_a_class() -> Program:
    class One:
        scale = 2.0

    class Two:
        scale = 5.0

    class Config(One):
        pass

    return lambda x: x * Config.scale, lambda: setattr(Config, "__bases__", (Two,))


@program
def registered_class() -> Program:
    class Kind(abc.ABC):  # noqa: B024
        pass

    class Thing:
        pass

    thing = Thing()
    return (
        lambda x: x * (2 if isinstance(thing, Kind) else 3),
        lambda: Kind.register(Thing),
    )


@program
def super_call() -> Program:
    class Base:
        def scale(self) -> float:
            return 2.0

    class Config(Base):
        def scale(self) -> float:
            return super().scale() * 3

    config = Config()
    return lambda x: x * config.scale(), setter(Base, "scale", lambda self: 5.0)


@program
def forward_of_a_class_of_torch() -> Program:
    class Own(nn.ReLU):
        pass

    m = nn.Sequential(Own())
    return m, setter(Own, "forward", lambda self, x: x * 3)


@program
def attribute_that_appears() -> Program:
    class Config:
        pass

    config = Config()
    return (
        lambda x: x * getattr(config, "scale", 2.0),
        setter(config, "scale", 5.0),
        setter(config, "other", 5.0),
    )


@program
def method_that_appears() -> Program:
    class Thing:
        pass

    thing = Thing()
    return lambda x: x * (2 if thing else 3), setter(
        Thing, "__bool__", lambda self: False
    )


# -- attributes ------------------------------------------------------------------------


@program
def literal_getattr() -> Program:
    o = SimpleNamespace(scale=2.0, other=1)
    return lambda x: x * getattr(o, "scale"), *both(o)  # noqa: B009


@program
def computed_getattr() -> Program:
    o = SimpleNamespace(scale_1=2.0)
    return lambda x: x * getattr(o, f"scale_{len([0])}"), setter(o, "scale_1", 5.0)


@program
def getattr_by_a_stored_name() -> Program:
    o, names = SimpleNamespace(scale=2.0), ["scale"]
    return lambda x: x * getattr(o, names[0]), setter(o, "scale", 5.0)


@program
def attrgetter() -> Program:
    o, get = SimpleNamespace(scale=2.0, other=1), operator.attrgetter("scale")
    return lambda x: x * get(o), *both(o)


@program
def whole_dict_of_an_object() -> Program:
    o = SimpleNamespace(scale=2.0)
    return lambda x: x * vars(o)["scale"], setter(o, "scale", 5.0)


@program
def sum_of_attributes() -> Program:
    o = SimpleNamespace(a=2.0)
    return lambda x: x * sum(o.__dict__.values()), setter(o, "b", 5.0)


@program
def replaced_dict() -> Program:
    class Config:
        def __init__(self) -> None:
            self.scale = 2.0

    config = Config()
    return lambda x: x * config.scale, setter(config, "__dict__", {"scale": 5.0})


@program
def property_of_an_object() -> Program:
    class Config:
        def __init__(self) -> None:
            self._scale, self.other = 2.0, 1

        @property
        def scale(self) -> float:
            return self._scale

    config = Config()
    return lambda x: x * config.scale, *both(config, "_scale")


@program
def own_descriptor() -> Program:
    class Number:
        def __init__(self) -> None:
            self.value, self.other = 2.0, 1

        def __get__(self, owner: Any, kind: Any = None) -> float:
            return self.value

    class Config:
        scale = Number()

    config = Config()
    return lambda x: x * config.scale, *both(vars(Config)["scale"], "value")


@program
def cached_property() -> Program:
    class Config:
        base = 2.0

        @functools.cached_property
        def scale(self) -> float:
            return self.base * 2

    config = Config()

    def change() -> None:
        del config.scale
        config.base = 5.0

    return lambda x: x * config.scale, change


@program
def dunder_getattr() -> Program:
    class Config:
        def __init__(self) -> None:
            self.table = {"scale": 2.0}
            self.other = 1

        def __getattr__(self, name: str) -> Any:
            return self.__dict__["table"][name]

    config = Config()
    return lambda x: x * config.scale, lambda: config.table.update(scale=5.0)


@program
def dunder_getattribute() -> Program:
    class Config:
        def __init__(self) -> None:
            self.hidden_scale = 2.0

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, "hidden_" + name)

    config = Config()

    def change() -> None:
        config.hidden_scale = 5.0

    return lambda x: x * config.scale, change


@program
def slots() -> Program:
    class Config:
        __slots__ = ("other", "scale")

        def __init__(self) -> None:
            self.scale, self.other = 2.0, 1

    config = Config()
    return lambda x: x * config.scale, *both(config)


@program
def attribute_of_a_function() -> Program:
    def helper() -> float:
        return float(helper.scale)  # type: ignore[attr-defined]

    helper.scale, helper.other = 2.0, 1  # type: ignore[attr-defined]
    return lambda x: x * helper(), *both(helper)


@program
def attribute_of_a_tensor() -> Program:
    w = torch.ones(3)
    w.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * w * w.scale, *both(w)  # type: ignore[attr-defined]


@program
def absent_attribute_of_a_parameter() -> Program:
    m = nn.Linear(3, 3)
    return (
        lambda x: m(x) * getattr(m.weight, "scale", 2.0),
        setter(m.weight, "scale", 5.0),
    )


@program
def attribute_of_a_number() -> Program:
    class Number(float):
        scale = 1.0

    number = Number(2.0)
    return lambda x: x * number.scale * number, setter(number, "scale", 5.0)


@program
def keys_of_an_object_renamed() -> Program:
    class Config:
        def __init__(self) -> None:
            self.a = 2.0

    config = Config()

    def change() -> None:
        config.__dict__["b"] = config.__dict__.pop("a")

    return lambda x: x * (2 if hasattr(config, "b") else 3), change


# -- functions -------------------------------------------------------------------------


@program
def defaults() -> Program:
    def helper(scale: float = 2.0) -> float:
        return scale

    return lambda x: x * helper(), setter(helper, "__defaults__", (5.0,))


@program
def keyword_defaults() -> Program:
    def helper(*, scale: float = 2.0) -> float:
        return scale

    assert helper.__kwdefaults__ is not None
    return lambda x: x * helper(), lambda: helper.__kwdefaults__.update(scale=5.0)


@program
def code_of_a_function() -> Program:
    def helper() -> float:
        return 2.0

    def other() -> float:
        return 5.0

    return lambda x: x * helper(), setter(helper, "__code__", other.__code__)


@program
def code_of_a_builtin_name() -> Program:
    def change() -> None:
        globals()["len"] = lambda value: 7

    return lambda x: x * len([1, 2]), change


@program
def replaced_builtin() -> Program:
    box = [1, 2]
    use(box)
    return lambda x: x * max(G), lambda: box.append(9)


@program
def closure() -> Program:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 5.0

    def inner() -> float:
        return scale

    return lambda x: x * inner(), change


@program
def partial() -> Program:
    helper = functools.partial(lambda *, scale: scale, scale=2.0)
    return lambda x: x * helper(), lambda: helper.keywords.update(scale=5.0)


@program
def function_in_a_registry() -> Program:
    class Config:
        scale = 2.0

    def scaled() -> float:
        return Config.scale

    registry = {"f": scaled}
    return lambda x: x * registry["f"](), setter(Config, "scale", 5.0)


@program
def function_found_by_a_computed_name() -> Program:
    settings = {"scale": 2.0}

    class Tools:
        def get_scale(self) -> float:
            return settings["scale"]

    tools = Tools()
    return (
        lambda x: x * getattr(tools, "get_" + "".join(["sc", "ale"]))(),
        lambda: settings.update(scale=5.0),
    )


@program
def cleared_cache() -> Program:
    box = [2.0]

    @functools.lru_cache
    def scale() -> float:
        return box[0]

    scale()
    box[0] = 5.0
    return lambda x: x * scale(), scale.cache_clear


@program
def refilled_cache() -> Program:
    box = [2.0]

    @functools.cache
    def scale(key: int = 0) -> float:
        return box[0]

    def change() -> None:
        scale.cache_clear()
        box[0] = 5.0
        scale()

    return lambda x: x * scale(), change, lambda: scale(3)


@program
def generator_function() -> Program:
    class Config:
        scale = 2.0

    def numbers() -> Iterator[float]:
        yield Config.scale

    return lambda x: x * sum(numbers()), setter(Config, "scale", 5.0)


@program
def single_dispatch() -> Program:
    @functools.singledispatch
    def scale(value: Any) -> float:
        return 2.0

    return lambda x: x * scale(1), lambda: scale.register(int, lambda value: 5.0)


@program
def bound_method_of_a_dict() -> Program:
    settings = {"scale": 2.0}
    get = settings.get
    return lambda x: x * get("scale"), lambda: settings.update(scale=5.0)


@program
def decorated() -> Program:
    class Config:
        scale = 2.0

    def twice(inner: Callable[[], float]) -> Callable[[], float]:
        @functools.wraps(inner)
        def outer() -> float:
            return inner() * 2

        return outer

    @twice
    def helper() -> float:
        return Config.scale

    return lambda x: x * helper(), setter(Config, "scale", 5.0)


# -- attributes that C reads -----------------------------------------------------------


@program
def attrgetter_with_dots() -> Program:
    config = SimpleNamespace(inner=SimpleNamespace(scale=2.0))
    return (
        lambda x: x * operator.attrgetter("inner.scale")(config),
        setter(config.inner, "scale", 5.0),
    )


@program
def attrgetter_over_a_list() -> Program:
    configs = [SimpleNamespace(scale=2.0), SimpleNamespace(scale=3.0)]
    return (
        lambda x: x * sum(map(operator.attrgetter("scale"), configs)),
        setter(configs[1], "scale", 5.0),
    )


@program
def format_of_an_attribute() -> Program:
    config = SimpleNamespace(scale=2.0)
    return (
        lambda x: x * float("{0.scale}".format(config)),  # noqa: UP030, UP032
        setter(config, "scale", 5.0),
    )


@program
def repr_of_a_namespace() -> Program:
    config = SimpleNamespace(scale=2.0)
    return lambda x: x * len(repr(config)), setter(config, "scale", 5.25)


@program
def numpy_function() -> Program:
    weights = numpy.array([2.0, 3.0])

    def change() -> None:
        weights[0] = 5.0

    return lambda x: x * float(numpy.sum(weights)), change
