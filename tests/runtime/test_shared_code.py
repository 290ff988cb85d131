"""Models of one class share compiled code, and models that are gone leave nothing."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime import shared_code
from torchproof.runtime.backend import Backend


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
    status = torchproof.status(second)
    assert len(status.compilations) == 1 and status.graphs is None, status
    first(x[:1])
    assert len(torchproof.status(first).compilations) == 1


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


@pytest.mark.parametrize(
    "options", [{"dynamic": True}, {"strategy": "eager"}, {"deadline": 30.0}]
)
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


class Tied(nn.Module):
    """Changes one parameter or buffer, and reads another, or the same, or a view."""

    def __init__(self, how: str, kind: type[Tensor]) -> None:
        super().__init__()
        self.a = kind(torch.ones(4))
        others = {"apart": kind(torch.ones(4)), "same": self.a}
        self.b = others.get(how, self.a)
        if how == "view":
            self.b = nn.Buffer(self.a.view(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.a.add_(1)
        return x * self.b


@pytest.mark.parametrize(
    ("kind", "hows"),
    [
        (nn.Parameter, ("apart", "same", "apart")),
        (nn.Parameter, ("same", "apart")),
        (nn.Buffer, ("apart", "same", "view", "apart")),
        (nn.Buffer, ("view", "apart")),
    ],
)
def test_code_depends_on_which_weights_are_the_same(
    kind: type[Tensor], hows: tuple[str, ...], fresh_compiler: None
) -> None:
    x = torch.ones(4)
    models = [compiled(Tied(how, kind), backend="aot_eager") for how in hows]
    answers = [model(x)[0].item() for model in models]
    assert answers == [1.0 if how == "apart" else 2.0 for how in hows]
    # It writes to weights: later ones may share memory, which no guard notices.
    assert not any(torchproof.status(model).shares_code for model in models)


def test_views_of_weights_may_be_made_after_the_first_call(
    fresh_compiler: None,
) -> None:
    short, long = torch.ones(4), torch.ones(1, 4)
    first, second = (
        compiled(Tied("apart", nn.Buffer), backend="aot_eager", dynamic=False)
        for _ in range(2)
    )
    first(short)
    first(long)
    second(short)
    second.b = nn.Buffer(second.a.view(4))
    assert second(long)[0, 0].item() == second.a[0].item() == 3.0


def test_weights_may_be_tied_after_compiling(fresh_compiler: None) -> None:
    x = torch.ones(4)
    model = compiled(Tied("apart", nn.Parameter), backend="aot_eager")
    model(x)
    model.b = model.a
    assert model(x)[0].item() == 3.0


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


@pytest.mark.parametrize("when", ["before", "between"])
def test_code_of_other_settings_is_not_used(when: str, fresh_compiler: None) -> None:
    x = torch.randn(2, 8)
    first, second = compiled(Net()), compiled(Net())
    first(x)
    if when == "between":
        second(x)
    with torch._inductor.config.patch(fallback_random=True):
        second(x[:1])
    assert len(torchproof.status(second).compilations) == 1
    first(x[:1])  # it would run what was compiled with other settings
    assert len(torchproof.status(first).compilations) == 2


@pytest.mark.parametrize("changes", [True, False])
def test_settings_that_change_later_are_noticed(
    changes: bool, fresh_compiler: None
) -> None:
    x = torch.randn(4, 8)
    first, second = (compiled(Net(), dynamic=False) for _ in range(2))
    first(x)
    first(x[:2])
    second(x)
    with torch._inductor.config.patch(fallback_random=changes):
        second(x[:2])  # first's code has other settings
    assert len(torchproof.status(second).compilations) == changes
    assert torchproof.status(second).shares_code


def test_settings_that_are_back_before_a_call_change_nothing(
    fresh_compiler: None,
) -> None:
    x = torch.randn(4, 8)
    first, second, third = (compiled(Net(), dynamic=False) for _ in range(3))
    first(x)
    second(x)
    with torch._inductor.config.patch(fallback_random=True):
        assert third(x).shape == x.shape
    second(x)
    assert torchproof.status(second).compile_s == 0
    assert len(torchproof.status(third).compilations) == 1


class Sized(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(self.layer(x))


def late_backward(compile_it: Callable[[Any], Any]) -> Callable[..., Any]:
    """A backend whose backward graphs are compiled when they first run."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    def compiler(gm: Any, inputs: Any, backward: Any) -> Any:
        def late(graph: Any, _: Any) -> Any:
            run = make_boxed_func(graph.forward)
            return backward(lambda: compile_it(run), run)

        def forward(graph: Any, _: Any) -> Any:
            return make_boxed_func(graph.forward)

        backend: Any = aot_autograd(fw_compiler=forward, bw_compiler=late)
        return backend(gm, inputs)

    return compiler


@pytest.mark.parametrize("fails", [False, True])
def test_a_late_backward_pass_is_reported_to_the_model_that_needs_it(
    fails: bool, fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_it(run: Any) -> Any:
        if fails:
            raise RuntimeError("planted")
        return run

    make = late_backward(compile_it)
    monkeypatch.setattr(torchproof.runtime.backend.backends, "compiler", lambda _: make)
    x = torch.randn(2, 8)
    first, second = (compiled(Sized(), backend="aot_eager") for _ in range(2))
    first(x)
    before = torchproof.status(first)
    second(x).sum().backward()
    expected = torch.autograd.grad(torch.cos(second.layer(x)).sum(), second.layer.bias)
    assert torch.allclose(second.layer.bias.grad, expected[0])
    status, other = torchproof.status(second), torchproof.status(first)
    if fails:  # first has the code that runs eager, and second ran it
        assert [len(each.fallbacks) for each in (status, other)] == [1, 1]
        return
    assert [item.function for item in status.compilations] == ["backward of graph 1"]
    assert status.compile_s > 0 and not other.fallbacks
    assert (other.compile_s, other.compilations) == (
        before.compile_s,
        before.compilations,
    )
    first(x).sum().backward()  # it is compiled already
    assert torchproof.status(first).compile_s == before.compile_s


@pytest.mark.slow
def test_late_events_of_a_deleted_model_reach_no_other(
    fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A background compilation fails after its backend has gone to another model."""
    live_objects()
    monkeypatch.setattr(shared_code, "_unused", [])
    x = torch.ones(4)
    entered, proceed, failed = (threading.Event() for _ in range(3))

    def slow(gm: Any, inputs: Any) -> Any:
        entered.set()
        proceed.wait(60)
        failed.set()
        raise RuntimeError("planted")

    function = torchproof.compile(lambda x: x + 1, backend=slow, wait=False)
    function(x)
    assert entered.wait(60)
    backend = function._engine.backend
    background = function._engine.background
    del function
    gc.collect()
    other = compiled(Outer())
    reused = other.forward._engine.backend is backend
    proceed.set()
    assert reused
    assert failed.wait(60)
    until = time.monotonic() + 60
    while background.pending and time.monotonic() < until:
        time.sleep(0.01)
    other(x)
    status = torchproof.status(other)
    assert not status.fallbacks and status.graphs == 1, status
    assert backend.key is not None


def test_shared_code_is_verified(fresh_compiler: None) -> None:
    x = torch.randn(2, 8)
    compiled(Net())(x)
    model = compiled(Net(), wait=False, verify="first")
    for _ in range(3):
        model(x)
    assert len(torchproof.status(model).verifications) == 1


class Broken(nn.Module):
    """Its forward has no graph of its own; what it calls has."""

    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        print(end="")
        x = x * 2
        torch._dynamo.graph_break()
        return x * 2 if self.kind == "plain" else x * 3


def test_graphs_that_another_model_compiled_are_not_counted(
    fresh_compiler: None,
) -> None:
    x = torch.ones(4)
    first, second, other = (compiled(Broken(k)) for k in ("plain", "plain", "other"))
    for model in (first, second, other):
        model(x)
    status = torchproof.status(first)
    assert (status.graphs, status.graph_breaks, status.notes[1:]) == (2, 2, ()), status
    for model in (second, other):
        status = torchproof.status(model)
        assert status.compiled_calls == 1 and status.shares_code, status
        assert any("another Broken" in note for note in status.notes), status
        record = status.to_json()
        assert record["graphs"] is None and record["graph_breaks"] is None
        assert "- graphs, - graph breaks" in str(status)


def test_live_models_keep_the_code_of_deleted_ones(
    fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_code, "_MOST_LEFT", 1)
    monkeypatch.setattr(shared_code, "_MOST_ANSWERS", 1)
    x = torch.ones(4)
    first, second = compiled(Broken()), compiled(Broken())
    first(x)
    second(x)
    del first
    gc.collect()
    for width in (4, 5, 6):
        compiled(Net(width), dynamic=False)(torch.ones(2, width))
        gc.collect()
    left = [each for each in shared_code._left.values() if each.key[0] is Net]
    assert len(left) == 2  # the model before the last and the last
    shared_code.free_unused()
    assert [len(each.stored) for each in left] == [0, 1]
    second(x)
    status = torchproof.status(second)
    assert not status.compilations and status.compiled_calls == 2, status


def test_a_deletion_during_a_lookup_recompiles_nothing(
    fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [compiled(Net(), on_event=lambda *_: None) for _ in range(2)]
    for model in models:
        model(torch.ones(2, 8))
    first, inside, deleted = models[0], threading.Event(), threading.Event()

    def equal(self: Backend, other: object) -> bool:
        if threading.current_thread().name == "caller":
            inside.set()
            deleted.wait(60)
        return self is other

    monkeypatch.setattr(Backend, "__eq__", equal)
    monkeypatch.setattr(Backend, "__hash__", lambda self: 1)
    x = torch.ones(2, 8)
    thread = threading.Thread(target=lambda: first(x), name="caller")
    thread.start()
    assert inside.wait(60)
    del model, models
    gc.collect()
    deleted.set()
    thread.join()
    status = torchproof.status(first)
    assert status.recompiles == 0 and len(status.compilations) == 1, status
    first(x)
    assert torchproof.status(first).compiled_calls == 2  # all but the disturbed call


def test_calls_under_force_eager_are_not_called_compiled(fresh_compiler: None) -> None:
    x = torch.randn(2, 8)
    compiled(Net())(x)
    model = compiled(Net())
    with torch.compiler.set_stance("force_eager"):
        model(x)
        status = torchproof.status(model)
        assert status.compiled_calls == 0 and not status.shares_code, status
        assert any("force_eager" in note for note in status.notes), status
    model(x)
    status = torchproof.status(model)
    assert status.compiled_calls == 1 and status.shares_code, status
    assert not any("is in force" in note for note in status.notes), status


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


@pytest.mark.slow
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
