"""Models of one class share compiled code, and models that are gone leave nothing."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


def compiled(model: nn.Module, **arguments: Any) -> nn.Module:
    arguments = {"backend": "eager", **arguments}
    result: nn.Module = torchproof.compile(model, **arguments)
    return result


def live_objects() -> Counter[str]:
    for _ in range(4):  # the deletion of a model lets go of others
        gc.collect()
    return Counter(type(each).__qualname__ for each in gc.get_objects())


def test_models_of_one_class_share_code(fresh_compiler: None) -> None:
    x = torch.randn(2, 8)
    first, second = compiled(Net()), compiled(Net())
    first(x)
    assert torch.equal(second(x), torch.relu(second.layer(x)))
    status = torchproof.status(second)
    assert status.compile_s == 0 and not status.compilations, status
    assert status.compiled_calls == 1, status
    assert status.shares_code, status
    # The guards decide: other sizes are compiled, and both can use the result.
    assert torch.equal(second(x[:1]), torch.relu(second.layer(x[:1])))
    status = torchproof.status(second)
    assert len(status.compilations) == 1 and status.graphs is None, status
    first(x[:1])
    assert len(torchproof.status(first).compilations) == 1


@pytest.mark.parametrize(
    "options",
    [
        *({"dynamic": True}, {"strategy": "eager"}, {"deadline": 30.0}),
        {"isolate_recompiles": True},
    ],
)
def test_other_options_share_nothing(
    options: dict[str, Any], fresh_compiler: None
) -> None:
    x = torch.randn(2, 8)
    compiled(Net())(x)
    other = compiled(Net(), **options)
    other(x)
    status = torchproof.status(other)
    assert not status.shares_code, status


def test_every_model_reports_the_fallback_of_code_that_failed(
    fresh_compiler: None,
) -> None:
    def fails(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("planted")

    for _ in range(2):
        model = compiled(Net(), backend=fails)
        model(torch.randn(2, 8))
        assert torchproof.status(model).fallbacks


class Tied(nn.Module):
    """Changes one parameter or buffer, and reads another, or the same, or a view."""

    def __init__(self, sharing: str, kind: type[Tensor]) -> None:
        super().__init__()
        self.a = kind(torch.ones(4))
        others = {"apart": kind(torch.ones(4)), "same": self.a}
        self.b = others.get(sharing, self.a)
        if sharing == "view":
            self.b = nn.Buffer(self.a.view(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.a.add_(1)
        return x * self.b


@pytest.mark.parametrize(
    ("kind", "sharings"),
    [
        (nn.Parameter, ("same", "apart", "same")),
        (nn.Buffer, ("apart", "same", "view", "apart")),
    ],
)
def test_code_depends_on_which_weights_are_the_same(
    kind: type[Tensor], sharings: tuple[str, ...], fresh_compiler: None
) -> None:
    x = torch.ones(4)
    models = [compiled(Tied(each, kind), backend="aot_eager") for each in sharings]
    answers = [model(x)[0].item() for model in models]
    assert answers == [1.0 if each == "apart" else 2.0 for each in sharings]
    shared = [torchproof.status(model).shares_code for model in models]
    assert shared == [each in sharings[:n] for n, each in enumerate(sharings)]


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    @torch.compiler.assume_constant_result
    def scale(self) -> float:
        return self.value * 2

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x) * 2
        return result


def test_what_no_guard_covers_is_not_shared(fresh_compiler: None) -> None:
    x = torch.ones(4)
    assert [compiled(Constant(v))(x)[0].item() for v in (1.0, 5.0)] == [2.0, 10.0]
    patched = Outer()
    patched.inner._call_impl = lambda x: x + 10
    assert [compiled(each)(x)[0].item() for each in (Outer(), patched)] == [2.0, 22.0]


def test_code_of_other_settings_is_not_used(fresh_compiler: None) -> None:
    x = torch.randn(2, 8)
    first, second = compiled(Net()), compiled(Net())
    first(x)
    second(x)
    with torch._inductor.config.patch(fallback_random=True):
        second(x[:1])
    assert len(torchproof.status(second).compilations) == 1
    first(x[:1])  # it would run what was compiled with other settings
    assert len(torchproof.status(first).compilations) == 2


def test_shared_code_is_verified(fresh_compiler: None) -> None:
    x = torch.randn(2, 8)
    compiled(Net())(x)
    model = compiled(Net(), wait=False, verify="first")
    for _ in range(3):
        model(x)
    assert len(torchproof.status(model).verifications) == 1


@pytest.mark.slow
def test_short_lived_models_leave_nothing(fresh_compiler: None) -> None:
    x = torch.randn(2, 8)

    def run(count: int) -> list[weakref.ref[Any]]:
        parameters = []
        for number in range(count):
            model = compiled(Net())
            with torch.no_grad():
                model(x)
            parameters.append(weakref.ref(model.layer.weight))
            del model
            if number % 6 == 5:  # a whole collection takes long
                gc.collect()
        return parameters

    run(12)
    before = live_objects()
    parameters = run(36)
    more = live_objects() - before
    assert not any(each() is not None for each in parameters)
    # Python keeps weak references of its own for a while.
    own = ("ReferenceType", "builtin_function_or_method")
    assert not {name: n for name, n in more.items() if n >= 18 and name not in own}
