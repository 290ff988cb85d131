"""`wait=False`: calls are answered while code is generated, then compiled code is used.

A backend that waits until it is told to go on stands for a compiler that takes long.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from test_threads import at_once
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend
from twins import Net, assert_alike, assert_trained_alike, sample, twins

import torchproof
from torchproof.torch_private import hidden_gradients

AGES_S = 300.0  # long enough for any machine

# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


class Slow:
    """A compiler that ends when it may, and counts what it was given."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.began: Counter[tuple[int, ...]] = Counter()

    def __call__(self, gm: Any, inputs: Any) -> Any:
        size = max((tuple(i.shape) for i in inputs if isinstance(i, Tensor)), key=len)
        self.began[size] += 1
        assert self.may_end.wait(AGES_S)
        return lookup_backend("aot_eager")(gm, inputs)


class Broken(Net):
    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        y = super().forward(x, shift=shift)
        torch._dynamo.graph_break()
        return y * 2


def wait_for(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + AGES_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def wait_until_idle(model: Any) -> None:
    wait_for(lambda: not torchproof.status(model).pending, "it compiles for ever")


def test_calls_are_answered_before_and_after_the_switch() -> None:
    slow = Slow()
    plain, model = twins(Net().eval(), backend=slow, wait=False)
    for _ in range(3):
        assert_alike(plain, model, sample())
    wait_for(lambda: slow.began, "nothing is compiled")
    assert_alike(plain, model, sample())
    told = torchproof.status(model)
    assert told.pending and "Net.forward" in str(told)
    assert told.calls == 4 and told.compiled_calls == 0 and not told.fallbacks
    assert told.state == "compiling"
    slow.may_end.set()
    wait_until_idle(model)
    # Nothing has failed, but the code is not in use before the next call.
    assert torchproof.status(model).state == "compiling"
    for _ in range(2):
        assert_alike(plain, model, sample())
    told = torchproof.status(model)
    assert told.compiled_calls == 2 and len(told.compilations) == 1, str(told)
    assert told.state == "compiled"
    assert sum(slow.began.values()) == 1 and not told.fallbacks


class Tracing(Slow):
    """Replaces a method of all modules meanwhile, as FX does."""

    def __call__(self, gm: Any, inputs: Any) -> Any:
        with mock.patch.object(nn.Module, "__getattr__", _getattr):
            return super().__call__(gm, inputs)


def _getattr(module: nn.Module, name: str, get: Any = nn.Module.__getattr__) -> Any:
    return get(module, name)


@pytest.fixture(params=[Slow, Tracing])
def other(request: Any) -> Iterator[Slow]:
    """The compiler of another model."""
    compiler: Slow = request.param()
    yield compiler
    compiler.may_end.set()


def compile_another(compiler: Slow) -> Any:
    """A model that is compiling until its compiler may end."""
    model = torchproof.compile(nn.Linear(4, 4), backend=compiler, wait=False)
    model(torch.ones(2, 4))
    wait_for(lambda: compiler.began, "nothing is compiled")
    return model


def test_no_call_waits_while_another_model_compiles(other: Slow) -> None:
    """Torch compiles one thing at a time; its code may take minutes to generate."""
    plain, model = twins(Net().eval(), backend="eager", wait=False)
    assert_alike(plain, model, sample())
    wait_until_idle(model)  # the next call would trace it again, and use its code
    busy = compile_another(other)
    call = threading.Thread(target=assert_alike, args=(plain, model, sample()))
    call.start()
    call.join(AGES_S / 10)
    answered = not call.is_alive()
    other.may_end.set()
    call.join()
    assert answered
    status = torchproof.status(model)
    assert status.state == "compiling" and status.totals.stalls == 0
    wait_until_idle(busy)
    assert_alike(plain, model, sample())
    assert torchproof.status(model).state == "compiled"


@pytest.mark.parametrize("other", [Tracing], indirect=True)
def test_nothing_is_compiled_again_because_another_model_is_traced(
    other: Slow,
) -> None:
    plain, model = twins(Net().eval(), backend="eager", wait=False)
    for _ in range(2):
        assert_alike(plain, model, sample())
        wait_until_idle(model)
    assert torchproof.status(model).compiled_calls == 1
    busy = compile_another(other)
    assert_alike(plain, model, sample())  # eager: its guards do not hold now
    assert not torchproof.status(model).pending
    other.may_end.set()
    wait_until_idle(busy)
    for _ in range(2):
        assert_alike(plain, model, sample())
    status = torchproof.status(model)
    assert status.compiled_calls == 3 and status.recompiles == 0, str(status)
    assert status.state == "compiled" and not model.forward.engine.has_prepared


def test_code_that_is_prepared_for_another_size_leaves_the_state_compiled() -> None:
    plain, model = twins(Net().eval(), backend="eager", wait=False, dynamic=False)
    for rows in (3, 3, 5):
        assert_alike(plain, model, sample(rows))
        wait_until_idle(model)
    assert model.forward.engine.has_prepared
    assert torchproof.status(model).state == "compiled"


def test_a_part_after_a_graph_break_is_compiling_until_a_call_uses_it() -> None:
    plain, model = twins(Broken().eval(), backend="eager", wait=False)
    states = []
    for _ in range(4):
        assert_alike(plain, model, sample())
        wait_until_idle(model)
        states.append(torchproof.status(model).state)
    assert states == ["compiling", "compiling", "compiled", "compiled"]


def test_training_goes_on_meanwhile() -> None:
    slow = Slow()
    plain, model = twins(Net().eval(), backend=slow, wait=False)
    assert_trained_alike(plain, model, sample())
    wait_for(lambda: slow.began, "nothing is compiled")
    slow.may_end.set()
    wait_until_idle(model)
    for _ in range(2):
        assert_trained_alike(plain, model, sample())
    told = torchproof.status(model)
    assert told.compiled_calls == 2 and not told.fallbacks, str(told)


@pytest.mark.slow
def test_a_size_that_comes_meanwhile_is_compiled_afterwards() -> None:
    slow = Slow()
    plain, model = twins(Net().eval(), backend=slow, wait=False, dynamic=False)
    assert_alike(plain, model, sample(3))
    wait_for(lambda: slow.began, "nothing is compiled")
    for _ in range(2):
        assert_alike(plain, model, sample(5))
    assert sum(slow.began.values()) == 1
    slow.may_end.set()
    for rows in (3, 5, 3, 5):
        wait_until_idle(model)
        assert_alike(plain, model, sample(rows))
    wait_until_idle(model)
    before = torchproof.status(model).compiled_calls
    for rows in (3, 5):
        assert_alike(plain, model, sample(rows))
    told = torchproof.status(model)
    assert told.compiled_calls == before + 2, str(told)
    assert len(told.compilations) == 2 and told.recompiles == 1, str(told)
    assert not told.fallbacks
    # torch 2.11 has one configuration for all threads: what is traced behind a call,
    # which has ended, may be taken to vary after all.
    assert sum(slow.began.values()) <= (2 if torch.__version__ >= (2, 12) else 3)


def test_threads_share_one_compilation() -> None:
    slow = Slow()
    plain, model = twins(Net().eval(), backend=slow, wait=False)

    def work(number: int) -> None:
        for _ in range(3):
            x = sample(seed=number)
            torch.testing.assert_close(model(x), plain(x))

    at_once(work)
    wait_for(lambda: slow.began, "nothing is compiled")
    slow.may_end.set()
    wait_until_idle(model)
    at_once(work)
    at_once(work)
    told = torchproof.status(model)
    assert sum(slow.began.values()) == len(told.compilations) == 1, str(told)
    assert told.compiled_calls >= 18 and told.calls == 54


def test_a_compiler_that_fails_leaves_the_model_eager() -> None:
    def broken(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("no such instruction")

    plain, model = twins(Net().eval(), backend=broken, wait=False)
    assert_alike(plain, model, sample())
    wait_until_idle(model)
    assert_alike(plain, model, sample())
    told = torchproof.status(model)
    assert [item.kind for item in told.fallbacks] == ["compile error"], str(told)
    assert "no such instruction" in told.fallbacks[0].why
    assert told.state == "eager"
    assert told.compiled_calls == 0


@pytest.mark.slow
def test_changes_of_the_model_meanwhile_are_seen() -> None:
    """What was compiled for a mode or a value that is gone does not answer."""
    slow = Slow()
    plain, model = twins(Net(), backend=slow, wait=False)
    assert_alike(plain, model, sample())
    wait_for(lambda: slow.began, "nothing is compiled")
    for one in (plain, model):
        one.eval()
        one.scale = 5.0
        one.head = nn.Linear(8, 2)
    model.head.load_state_dict(plain.head.state_dict())
    slow.may_end.set()
    for _ in range(3):
        wait_until_idle(model)
        assert_alike(plain, model, sample())
    told = torchproof.status(model)
    assert told.compiled_calls == 2 and not told.fallbacks, str(told)
    assert len(told.compilations) == 1


@pytest.mark.slow
def test_a_bad_input_at_first_does_not_leave_the_model_eager() -> None:
    plain, model = twins(Net().eval(), backend="aot_eager", wait=False)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(3, 5))
    for _ in range(3):
        wait_until_idle(model)
        assert_alike(plain, model, sample())
    told = torchproof.status(model)
    assert told.compiled_calls == 2 and not told.fallbacks, str(told)


@pytest.mark.slow
def test_sizes_that_vary_settle_on_one_code() -> None:
    plain, model = twins(Net().eval(), backend="aot_eager", wait=False)
    for rows in (3, 3, 5, 5, 7, 9, 11):
        assert_alike(plain, model, sample(rows))
        wait_until_idle(model)
    told = torchproof.status(model)
    assert len(told.compilations) == 2 and not told.fallbacks, str(told)
    assert told.compiled_calls == 5, str(told)


@pytest.mark.slow
def test_a_model_that_changes_all_the_time_is_compiled_in_front_at_last() -> None:
    slow = Slow()
    slow.may_end.set()
    plain, model = twins(Net().eval(), backend=slow, wait=False)
    for turn in range(5):
        for one in (plain, model):
            one.head = nn.Linear(8, 2 + turn)
        model.head.load_state_dict(plain.head.state_dict())
        # What is compiled is for a head that is gone when the next call comes.
        assert_alike(plain, model, sample())
        wait_until_idle(model)
    told = torchproof.status(model)
    assert told.compiled_calls == 1 and len(told.compilations) == 1, str(told)


def test_a_compilation_reads_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd writes `.grad` without the GIL: reading it meanwhile can crash."""
    from torch._subclasses import meta_utils

    hidden_gradients.install()
    slow = Slow()
    plain, model = twins(Net().train(), backend=slow, wait=False)
    for each in (*model.parameters(), *plain.parameters()):
        each.grad = torch.ones_like(each)
    found: list[bool] = []
    read = meta_utils.safe_grad

    def noted(tensor: Any) -> Any:
        gradient = read(tensor)
        if isinstance(tensor, nn.Parameter):
            found.append(gradient is not None)
        return gradient

    monkeypatch.setattr(meta_utils, "safe_grad", noted)
    model(sample())  # runs eager, and begins to compile
    wait_for(lambda: slow.began, "it never compiles")
    slow.may_end.set()
    wait_until_idle(model)
    assert_alike(plain, model, sample())
    assert found and not any(found)
    torch.compile(plain, backend="aot_eager")(sample())
    assert any(found), "plain torch reads them, also in this process"
