"""Models of one class share compiled code, and models that are gone leave nothing."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime import shared_code


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


class Failing(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(x))


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
    assert any("another Net" in note for note in status.notes), status
    # The guards decide: other sizes are compiled, and both can use the result.
    assert torch.equal(second(x[:1]), torch.relu(second.layer(x[:1])))
    assert len(torchproof.status(second).compilations) == 1


def test_a_deep_copy_uses_the_code_of_the_original(fresh_compiler: None) -> None:
    x = torch.randn(2, 8)
    original = compiled(Net())
    original(x)
    twin = copy.deepcopy(original)
    with torch.no_grad():
        twin.layer.weight.add_(1.0)
    assert torch.equal(twin(x), torch.relu(twin.layer(x)))
    assert not torch.equal(twin(x), original(x))
    assert torchproof.status(twin).compile_s == 0
    assert torchproof.status(twin).compiled_calls == 2


@pytest.mark.parametrize("options", [{"dynamic": True}, {"strategy": "eager"}])
def test_other_options_share_nothing(
    options: dict[str, Any], fresh_compiler: None
) -> None:
    x = torch.randn(2, 8)
    compiled(Net())(x)
    other = compiled(Net(), **options)
    other(x)
    status = torchproof.status(other)
    assert not any("another Net" in note for note in status.notes), status


def test_code_with_a_failed_graph_is_not_shared(
    fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("planted")

    x = torch.randn(2, 8)
    monkeypatch.setattr(torchproof.runtime.backend.backends, "compiler", lambda _: fail)
    first = compiled(Failing())
    first(x)
    assert torchproof.status(first).fallbacks
    second = compiled(Failing())
    second(x)
    assert torchproof.status(second).fallbacks  # it says so, too


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


def test_dynamic_sizes_leave_no_fake_tensors(fresh_compiler: None) -> None:
    """Torch keeps the environments of symbolic shapes, which list them."""

    def run(count: int) -> None:
        for _ in range(count):
            model = compiled(Net(), dynamic=True, on_event=lambda *_: None)
            with torch.no_grad():
                model(torch.randn(3, 8))
            assert torchproof.status(model).compiled_calls == 1

    run(1)
    before = live_objects()
    run(3)
    more = live_objects() - before
    kinds = ("FakeTensor", "TrackedFake", "_DispatchCacheKey")
    assert not {name: more[name] for name in kinds if more[name] > 2}, more


@pytest.mark.slow
def test_models_with_other_guards_leave_little(
    fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_code, "_MOST_LEFT", 2)

    def run(widths: range) -> None:
        for width in widths:
            model = compiled(Net(width), dynamic=False)
            with torch.no_grad():
                model(torch.randn(2, width))
            del model
        live_objects()

    run(range(8, 14))
    before = live_objects()
    run(range(14, 20))
    more = live_objects() - before
    # As many models have left their code as before.
    big = ("ShapeEnv", "Engine", "CheckFunctionManager", "GuardManagerWrapper")
    assert not {name: more[name] for name in big if more[name] > 2}, more
