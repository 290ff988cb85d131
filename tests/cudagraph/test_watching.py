"""What a graphed step watches: state that it reads, and no other.

That a change of what is read is seen is in tests/state_fuzz, for every way to read it.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph import ladder, python_undo, reachable_state

X = torch.ones(3)
Step = Callable[[Tensor], Tensor]


# -- changes that the step does not see ------------------------------------------------


class Config:
    scale = 2.0


class Slotted:
    __slots__ = ("other", "scale")

    def __init__(self) -> None:
        self.scale = 2.0


def helper() -> float:
    return helper.scale  # type: ignore[attr-defined, no-any-return]


helper.scale = 2.0  # type: ignore[attr-defined]
MODULE: Any = types.ModuleType("settings")
MODULE.scale = 2.0
WEIGHT: Any = torch.ones(3)
WEIGHT.scale = 2.0
Change = Callable[[int], Any]


def sets_another_attribute(owner: Any, step: Step) -> tuple[Step, Change]:
    return step, lambda number: setattr(owner, "other", number)


class Trainer:
    """Holds much that its step does not read."""

    def __init__(self) -> None:
        self.model = nn.Linear(3, 3)
        self.started = time.time()
        self.batches: Iterator[int] = itertools.count()
        self.lock = threading.Lock()
        self.log = logging.getLogger("test")
        self.count = 0
        self.history: list[float] = []
        self.settings = SimpleNamespace(scale=2.0, verbose=False)

    def scaled(self, x: Tensor) -> Tensor:
        with self.lock:
            if self.settings.verbose:
                self.report()
            self.log.debug("a step of %s", len(x))
            return x * self.settings.scale

    def report(self) -> None:
        print(next(self.batches), time.time() - self.started)

    def step(self, x: Tensor) -> Tensor:
        return self.scaled(self.model(x))

    def advance(self, number: int) -> None:
        self.count += 1
        self.history.append(float(number))
        next(self.batches)
        self.extra = number


def trainer() -> tuple[Step, Change]:
    made = Trainer()
    return made.step, made.advance


def optimizer_with_notes() -> tuple[Step, Change]:
    net = nn.Linear(3, 2)
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = net(x).square().mean()
        loss.backward()
        return loss.detach()

    def change(number: int) -> None:
        optimizer.notes = number
        optimizer.param_groups[0]["initial_lr"] = float(number)

    return step, change


def global_with_the_name_of_an_attribute() -> tuple[Step, Change]:
    names: dict[str, Any] = {"wrap": SimpleNamespace}
    exec("def step(x): return wrap(loss=x * 2).loss * 1", names)
    return names["step"], lambda number: names.update(loss=number)


# A step, and changes of what it does not read.
UNREAD: dict[str, Callable[[], tuple[Step, Change]]] = {
    "object": lambda: sets_another_attribute(o := Config(), lambda x: x * o.scale),
    "class": lambda: sets_another_attribute(Config, lambda x: x * Config.scale),
    "object with slots": lambda: sets_another_attribute(
        o := Slotted(), lambda x: x * o.scale
    ),
    "namespace": lambda: sets_another_attribute(
        o := SimpleNamespace(scale=2.0), lambda x: x * o.scale
    ),
    "function": lambda: sets_another_attribute(helper, lambda x: x * helper()),
    "module": lambda: sets_another_attribute(MODULE, lambda x: x * MODULE.scale),
    "tensor": lambda: sets_another_attribute(WEIGHT, lambda x: x * WEIGHT.scale),
    "trainer": trainer,
    "optimizer": optimizer_with_notes,
    "global": global_with_the_name_of_an_attribute,
    # Importing the compiler adds some; torch makes them at the first access.
    "namespace of operators": lambda: (
        lambda x: torch.ops.aten.relu(x),
        lambda number: getattr(torch.ops, f"torchproof_test_{number}"),
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_change_of_what_is_not_read_is_ignored(name: str) -> None:
    step, change = UNREAD[name]()
    graphed = torchproof.graph(step)
    for number in range(4):
        change(number)
        torch.testing.assert_close(graphed(X), step(X).detach())
    status = graphed.status()
    # The trainer has an iterator: only a real call shows that the step leaves it alone.
    replays = 3 if name == "trainer" else 4
    assert (status.recordings, status.replays, status.changes) == (1, replays, ())


# -- changes that it sees --------------------------------------------------------------


def test_a_value_that_returns_finds_its_recording() -> None:
    config = SimpleNamespace(scale=1.0)
    graphed = torchproof.graph(lambda x: x * config.scale)
    for _ in range(4):
        for scale in (1.0, 2.0):
            config.scale = scale
            assert graphed(X).tolist() == [scale] * 3
    assert (graphed.status().recordings, graphed.status().stops) == (2, ())


def test_a_value_that_changes_with_every_call_ends_recording() -> None:
    config = SimpleNamespace(scale=0.0)
    graphed = torchproof.graph(lambda x: x * config.scale)
    for number in range(12):
        config.scale = float(number)
        assert graphed(X).tolist() == [float(number)] * 3
    status = graphed.status()
    assert status.recordings < 8 and status.buckets == ()
    assert status.stops[0].kind == "python" and "scale" in status.stops[0].reason


def test_a_comparison_runs_no_code_of_the_user() -> None:
    class Touchy:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

        def __len__(self) -> int:
            raise AssertionError("measured")

    holder = [Touchy(2.0)]
    graphed = torchproof.graph(lambda x: x * holder[0].scale)
    graphed(X)
    holder[0] = Touchy(3.0)
    for _ in range(2):
        assert graphed(X).tolist() == [3.0] * 3
    assert (graphed.status().recordings, graphed.status().replays) == (2, 3)


def test_looking_into_a_list_runs_no_code_of_its_class() -> None:
    iterated: list[str] = []

    class Noisy(list[Config]):
        def __iter__(self) -> Iterator[Config]:
            iterated.append("a step or its observer")
            return super().__iter__()

    configs = Noisy([Config()])

    def step(x: Tensor, name: str = "scale") -> Tensor:
        held = configs  # where a computed name makes the observer look
        return x * getattr(held[0], name)

    graphed = torchproof.graph(step)
    graphed(X)
    configs[0].scale = 3.0
    assert graphed(X).tolist() == [3.0] * 3
    assert iterated == []


class Scaled(torch.autograd.Function):
    factor = SimpleNamespace(value=2.0)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * Scaled.factor.value


def test_what_a_backward_reads_is_watched(device: str) -> None:
    """On a GPU, it runs in another thread otherwise."""
    model = nn.Linear(3, 3, bias=False).to(device)
    x, scale = torch.ones(2, 3, device=device), 1.0
    model.weight.register_hook(lambda gradient: gradient * scale)

    def step(x: Tensor) -> Tensor:
        model.weight.grad = None
        loss: Tensor = Scaled.apply(model(x)).sum()
        loss.backward()
        return loss.detach()

    graphed = torchproof.graph(step)
    for Scaled.factor.value, scale in [(2.0, 1.0), (3.0, 1.0), (3.0, 4.0), (2.0, 1.0)]:
        for _ in range(2):
            graphed(x)
            assert model.weight.grad is not None
            assert (
                model.weight.grad.tolist()
                == [[2 * Scaled.factor.value * scale] * 3] * 3
            )
    assert graphed.status().stops == () and graphed.status().replays == 8


# -- what cannot be watched ------------------------------------------------------------


def subclasses() -> int:
    return len(Config.__subclasses__())


class Counting(torch.optim.Optimizer):
    def __init__(self) -> None:
        super().__init__([torch.zeros(3, requires_grad=True)], {})
        self.steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1


def optimizing(after: Callable[[Any], Any]) -> Step:
    optimizer = Counting()

    def step(x: Tensor) -> Tensor:
        after(optimizer)
        return x * 2

    return step


def scheduled() -> Step:
    optimizer = torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.1)
    optimizer.step()  # torch warns if a scheduler comes first

    def step(x: Tensor) -> Tensor:
        scheduler.step()  # changes the learning rate at every fourth call only
        return x * optimizer.param_groups[0]["lr"]

    return step


# tests/state_fuzz/limits.toml has more.
UNWATCHABLE: dict[str, Callable[[], Step]] = {
    "clock": lambda: lambda x: x * time.time(),
    "random bytes": lambda: lambda x: x * os.urandom(1)[0],
    "subclasses": lambda: lambda x: x * subclasses(),
    "setting of the interpreter": lambda: lambda x: x * sys.getrecursionlimit(),
    "optimizer that counts": lambda: optimizing(Counting.step),
    "scheduler": scheduled,
    "module of TorchScript": lambda: torch.jit.trace(nn.Linear(3, 3), X),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_unwatchable_state_is_a_reason_not_to_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stays = ladder.Choice(None, None)  # how it runs instead is another test's question
    monkeypatch.setattr(ladder, "choose", lambda *arguments: stays)
    for name, make in UNWATCHABLE.items():
        graphed = torchproof.graph(make())
        for _ in range(2):
            graphed(X)
        status = graphed.status()
        assert (status.replays, status.plain_calls) == (0, 2), name
        assert {stop.kind for stop in status.stops} == {"python"}, name
        assert all(stop.reason for stop in status.stops) and len(status.stops) < 10


# -- how it watches --------------------------------------------------------------------


def test_what_is_too_much_to_undo_is_not_run_in_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachable_state, "MOST_OBJECTS", 500)
    held = [[each] for each in range(1000)]  # no code names it

    def step(x: Tensor) -> Tensor:
        held[0][0] += 1
        return x * held[0][0]

    graphed = torchproof.graph(SimpleNamespace(held=held, step=step).step)
    for number in (1, 2):
        assert graphed(X).tolist() == [float(number)] * 3
    [stop] = graphed.status().stops
    assert stop.kind == "python" and "too many objects" in stop.reason


def test_a_new_hook_is_found_without_code_of_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(nn.Linear):
        """With a way of its own to get attributes, which fails."""

    def fail(self: Any, name: str) -> None:
        raise AssertionError(name)

    model = Own(3, 3)
    graphed = torchproof.graph(model, (X,))
    model.register_forward_hook(lambda module, args, output: output + 1)
    with monkeypatch.context() as patch:
        patch.setattr(Own, "__getattribute__", fail)
        assert "a hook was added to a Own" in graphed._snapshots.differing()
    torch.testing.assert_close(graphed(X), model(X).detach())


def test_an_undo_copies_the_program_and_not_its_libraries() -> None:
    """Methods that `dataclass` made for a library are no way into its modules."""
    saved = python_undo.PythonUndo()
    saved.save([test_a_change_of_what_is_not_read_is_ignored])
    owners = [*saved._seen.values()]
    assert any(each is UNREAD for each in owners)
    mark = type(pytest.mark.slow.mark)
    assert any(each is mark for each in owners)
    modules = [sys.modules[mark.__module__], sys.modules["_pytest.config"]]
    assert not any(each is vars(module) for module in modules for each in owners)
    assert len(owners) < 2000


def test_a_profiler_of_the_user_is_left_alone() -> None:
    graphed = torchproof.graph(lambda x: x * 2)

    def profile(frame: Any, event: str, argument: Any) -> None:
        pass

    sys.setprofile(profile)
    try:
        assert graphed(X).tolist() == [2.0] * 3
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert graphed(X).tolist() == [2.0] * 3
    assert graphed.status().replays == 1
