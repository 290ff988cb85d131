"""Functions that compute Python data for compiled code."""

from __future__ import annotations

import collections
import copy
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

from torchproof import host_call, host_value


@dataclass
class Config:
    layers: int = 2
    names: list[str] = field(default_factory=lambda: ["a", "b"])


class Slots:
    __slots__ = ("layers",)


def layout(config: Config, extra: int = 0) -> tuple[list[str], dict[str, Any]]:
    own = copy.deepcopy(config)
    own.layers += extra
    return ["full"] * own.layers, {
        "sizes": (own.layers, 2.5, None),
        "deep": {1: [True]},
    }


def step(x: torch.Tensor, config: Config) -> tuple[torch.Tensor, Any]:
    kinds, options = host_value(layout, config)
    kinds.append("more")
    options["deep"][2] = []
    return x * len(kinds), (kinds, options)


@pytest.fixture(autouse=True)
def _reset() -> None:
    torch.compiler.reset()


def compiled(function: Any, **how: Any) -> Any:
    how = {"backend": "eager", "fullgraph": True, **how}
    return torch.compile(function, **how)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_each_call_gets_new_data(backend: str) -> None:
    run, config, x = compiled(step, backend=backend), Config(), torch.ones(2)
    results = [run(x, config) for _ in range(3)]
    expected = step(x, config)
    for result in results:
        assert torch.equal(result[0], expected[0])
        assert result[1] == expected[1]
    lists = [result[1][0] for result in results]
    assert len({id(each) for each in lists}) == 3


def test_a_changed_object_is_compiled_again() -> None:
    counter = torch._dynamo.testing.CompileCounter()  # type: ignore[attr-defined]
    run, config, x = compiled(step, backend=counter), Config(), torch.ones(2)
    for layers in (2, 2, 5, 2):
        config.layers = layers
        assert run(x, config)[1] == step(x, config)[1]
    assert counter.frame_count == 2
    other = Config(layers=7)
    assert run(x, other)[1] == step(x, other)[1]


def test_state_outside_the_arguments_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x * host_value(_scaled, config)

    run, config = compiled(both), Config()
    assert run(torch.ones(1), config) == 2
    monkeypatch.setitem(SCALE, "by", 3)
    assert run(torch.ones(1), config) == 6


SCALE = {"by": 1}


def _scaled(config: Config) -> int:
    return config.layers * SCALE["by"]


def test_arguments_may_be_data() -> None:
    def both(x: torch.Tensor, options: dict[str, Any], number: int) -> Any:
        return x + 1, host_value(_merged, options, number, None, "text")

    run = compiled(both)
    for number in (1, 2):
        assert run(torch.ones(1), {"a": [1]}, number)[1] == _merged(
            {"a": [1]}, number, None, "text"
        )


def _merged(options: dict[str, Any], *more: Any) -> dict[str, Any]:
    own = copy.deepcopy(options)
    own["more"] = list(more)
    return own


def test_a_symbolic_number_is_right() -> None:
    def both(x: torch.Tensor) -> Any:
        return x + 1, host_value(_merged, {}, x.shape[0])

    run = compiled(both, dynamic=True, fullgraph=False)
    for size in (3, 5, 7):
        assert run(torch.ones(size))[1] == {"more": [size]}


# -- where it is a graph break, as without host_value ----------------------------------


def _changed_before(x: torch.Tensor, config: Config) -> Any:
    config.layers = int(config.layers) + 1
    return x + 1, host_value(layout, config)


def _part_changed_before(x: torch.Tensor, config: Config) -> Any:
    config.names.append("c")
    return x + 1, host_value(_names, config)


def _attribute_added_before(x: torch.Tensor, config: Config) -> Any:
    config.scale = 3  # type: ignore[attr-defined]
    return x + 1, host_value(_scale, config)


def _attribute_deleted_before(x: torch.Tensor, config: Config) -> Any:
    config.scale = 3  # type: ignore[attr-defined]
    x = x + 1
    del config.scale  # type: ignore[attr-defined]
    return x + 1, host_value(_scale, config)


def _shared(x: torch.Tensor, config: Config) -> Any:
    names = host_value(_own_names, config)
    names.append("more")
    return x + 1, list(config.names)


def _object(x: torch.Tensor, config: Config) -> Any:
    return x + 1, host_value(_copied, config)


def _made_here(x: torch.Tensor, config: Config) -> Any:
    own = Config(layers=config.layers + 1)
    return x + 1, host_value(layout, own)


def _of_tensor(x: torch.Tensor, config: Config) -> Any:
    return x + 1, host_value(_size, x)


def _copied(config: Config) -> Config:
    return copy.deepcopy(config)


def _names(config: Config) -> list[str]:
    return sorted(config.names)


def _own_names(config: Config) -> list[str]:
    return config.names


def _scale(config: Config) -> int:
    return int(getattr(config, "scale", 0))


def _size(x: torch.Tensor) -> list[int]:
    return x.tolist()


@pytest.mark.parametrize(
    "function",
    [
        _changed_before,
        _part_changed_before,
        _attribute_added_before,
        _attribute_deleted_before,
        _shared,
        _object,
        _made_here,
        _of_tensor,
    ],
)
def test_same_as_eager(function: Any) -> None:
    run, config, expected = compiled(function, fullgraph=False), Config(), Config()
    for _ in range(3):
        x = torch.ones(2)
        mine, eager = run(x, config), function(x, expected)
        assert mine[1] == eager[1]
        assert config == expected


def test_an_exception_is_raised_as_in_eager() -> None:
    def both(x: torch.Tensor, config: Config) -> Any:
        return x + 1, host_value(_raising, config)

    run, config = compiled(both, fullgraph=False), Config()
    with pytest.raises(ZeroDivisionError):
        run(torch.ones(2), config)
    config.layers = 0
    assert run(torch.ones(2), config)[1] == 0


def _raising(config: Config) -> int:
    return 1 // 0 if config.layers else 0


def test_objects_that_live_for_one_call_are_not_compiled_for() -> None:
    counter = torch._dynamo.testing.CompileCounter()  # type: ignore[attr-defined]

    def both(x: torch.Tensor, config: Config) -> Any:
        return x + 1, host_value(_first_name, config)

    run = compiled(both, backend=counter, fullgraph=False)
    for _ in range(6):
        assert run(torch.ones(2), Config())[1] == "a"
    assert counter.frame_count <= 4
    run, other = compiled(both), Other()  # of another type, and it stays
    for _ in range(2):
        assert run(torch.ones(2), other)[1] == "a"


class Other(Config):
    pass


def _first_name(config: Config) -> str:
    return sorted(config.names)[0]


class Kind(str, enum.Enum):  # noqa: UP042 - its text is not its value
    SMALL = "small"
    LARGE = "large"


class Size(NamedTuple):
    rows: int


@pytest.mark.parametrize(
    "value",
    [
        Kind.SMALL,
        Size(2),
        {"kind": Kind.SMALL},
        collections.OrderedDict(a=1),
        "a\0b",
        (1, 2.5, "a", None, [True]),
    ],
)
def test_types_of_arguments_are_kept(value: Any) -> None:
    def both(x: torch.Tensor, given: Any) -> Any:
        return x + 1, host_value(_types, given)

    run = compiled(both, fullgraph=False)
    for _ in range(2):
        assert run(torch.ones(1), value)[1] == _types(value)


def test_members_of_an_enum_are_kept() -> None:
    class Local(enum.IntEnum):
        ONE = 1

    def both(x: torch.Tensor, kind: Any) -> Any:
        return host_call(_scaled_by, x, kind, like=x), host_value(_types, kind)

    run, x = compiled(both), torch.ones(1)
    for kind, scale in ((Kind.SMALL, 2), (Kind.LARGE, 3), (Local.ONE, 1)):
        result, types = run(x, kind)
        assert result == scale and types == _types(kind)


def _scaled_by(x: torch.Tensor, kind: Any) -> torch.Tensor:
    if kind is Kind.SMALL:
        return x * 2
    return x * 3 if kind is Kind.LARGE else x * 1


def _types(value: Any) -> list[str]:
    parts = [value, *(value.values() if isinstance(value, dict) else ())]
    return [value if type(value) is str else "", *(type(p).__name__ for p in parts)]


def test_an_object_with_slots() -> None:
    def both(x: torch.Tensor, config: Any) -> Any:
        return x * host_value(_double, config)

    config = Slots()
    config.layers = 3
    run = compiled(both)
    assert run(torch.ones(1), config) == 6


def _double(config: Any) -> int:
    return int(config.layers * 2)
