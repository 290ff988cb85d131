"""Threads that call compiled models at once, and `wait=False`: calls never wait.

A backend that waits until it may end stands for a compiler that takes long.
"""

from __future__ import annotations

import copy
import importlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend
from twins import Net, Stack, assert_alike, compiled, sample, twins
from waiting import AGES_S, wait_for

import torchproof
from torchproof.runtime import background

THREADS = 6

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo hides it where warnings are shown, not where they are errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> None:
    """Runs the work in threads that begin together; all must end."""
    start = threading.Barrier(threads)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait(AGES_S)
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [
        threading.Thread(target=run, args=(number,), daemon=True)
        for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(AGES_S)
        assert not worker.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def wait_until_idle(model: Any) -> None:
    wait_for(lambda: not torchproof.status(model).pending)


class Slow:
    """A compiler that ends when it may, and counts its graphs."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.graphs = 0

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.graphs += 1
        assert self.may_end.wait(AGES_S)
        return lookup_backend("aot_eager")(gm, inputs)


# -- threads ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"strategy": "regional"}, {"wait": False}])
def test_threads_share_code_and_every_call_counts(options: dict[str, Any]) -> None:
    plain = Stack()
    model = compiled(copy.deepcopy(plain), backend="eager", **options)

    def work(number: int) -> None:
        for _ in range(4):
            x = sample(seed=number)
            torch.testing.assert_close(model(x), plain(x))

    at_once(work)
    wait_until_idle(model)
    at_once(work)
    status = torchproof.status(model)
    assert status.calls == 8 * THREADS and not status.fallbacks, status
    assert status.compilations and status.compiled_calls > 0, status
    # Guards of torch carry state: two threads in one block may disturb each other, so
    # that a call compiles again while others run eager (in plain torch as well).
    assert set(status.eager_calls) <= {"compiling", "recorded"}, status
    assert status.calls == status.compiled_calls + sum(status.eager_calls.values())
    model(sample())
    assert torchproof.status(model).compiled_calls == status.compiled_calls + 1


def test_each_thread_has_its_own_modes_and_trains() -> None:
    pairs = [twins(Net().eval()) for _ in range(2)]

    def work(number: int) -> None:
        plain, model = pairs[number % 2]
        x = sample(seed=number)
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=number == 2),
            torch.set_grad_enabled(number < 2),
        ):
            answer, expected = model(x), plain(x)
        assert answer.requires_grad is (number < 2)
        torch.testing.assert_close(answer, expected)
        if number < 2:  # of each model, one thread
            for each in (answer, expected):
                each.square().sum().backward()

    at_once(work, 4)
    for plain, model in pairs:
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)
        assert not torchproof.status(model).fallbacks


# -- wait=False ------------------------------------------------------------------------


def test_calls_are_answered_before_and_after_the_switch() -> None:
    slow = Slow()
    plain, model = twins(Net().eval(), backend=slow, wait=False)
    for _ in range(3):
        assert_alike(plain, model, sample())
    wait_for(lambda: slow.graphs)
    assert_alike(plain, model, sample())
    status = torchproof.status(model)
    assert status.pending and status.state == "compiling"
    assert (status.calls, status.compiled_calls, status.fallbacks) == (4, 0, ())
    slow.may_end.set()
    wait_until_idle(model)
    for _ in range(2):
        assert_alike(plain, model, sample())
    status = torchproof.status(model)
    assert (status.compiled_calls, len(status.compilations)) == (2, 1), status
    assert status.state == "compiled"
    assert slow.graphs == 1 and not status.fallbacks


def test_no_call_waits_while_another_model_compiles() -> None:
    """Torch compiles one thing at a time; its code may take minutes to generate."""
    plain, model = twins(Net().eval(), backend="eager", wait=False)
    assert_alike(plain, model, sample())
    wait_until_idle(model)  # the next call would trace it again, and use its code
    slow = Slow()
    busy = torchproof.compile(nn.Linear(4, 4), backend=slow, wait=False)
    busy(torch.ones(2, 4))
    wait_for(lambda: slow.graphs)
    call = threading.Thread(target=assert_alike, args=(plain, model, sample()))
    call.start()
    call.join(AGES_S / 10)
    has_answered = not call.is_alive()
    slow.may_end.set()
    call.join()
    assert has_answered and torchproof.status(model).totals.stalls == 0
    wait_until_idle(busy)
    assert_alike(plain, model, sample())
    assert torchproof.status(model).state == "compiled"


class Broken(Net):
    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        y = super().forward(x, shift=shift)
        torch._dynamo.graph_break()
        return y * 2


@pytest.mark.parametrize(
    ("make", "rows", "states"),
    [
        (Broken, (3, 3, 3, 3), "compiling compiling compiled compiled"),
        (Net, (3, 3, 5, 5, 5), "compiling compiled compiled compiled compiled"),
    ],
)
def test_parts_and_sizes_are_compiled_one_after_the_other(
    make: type[Net], rows: tuple[int, ...], states: str
) -> None:
    plain, model = twins(make().eval(), backend="eager", wait=False)
    found = []
    for each in rows:
        assert_alike(plain, model, sample(each))
        wait_until_idle(model)
        found.append(torchproof.status(model).state)
    assert found == states.split()
    assert not torchproof.status(model).fallbacks


def test_what_was_compiled_for_another_state_of_the_model_does_not_answer() -> None:
    slow = Slow()
    plain, model = twins(Net(), backend=slow, wait=False)
    assert_alike(plain, model, sample())
    wait_for(lambda: slow.graphs)
    for one in (plain, model):
        one.eval()
        one.scale = 5.0
        one.head = nn.Linear(8, 2)
    model.head.load_state_dict(plain.head.state_dict())
    slow.may_end.set()
    for _ in range(3):
        wait_until_idle(model)
        assert_alike(plain, model, sample())
    status = torchproof.status(model)
    assert (status.compiled_calls, len(status.compilations)) == (2, 1), status
    assert not status.fallbacks


def test_a_compilation_in_the_background_reads_no_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Autograd writes `.grad` without the GIL: reading it meanwhile can crash."""
    from torch._subclasses import meta_utils

    plain, model = twins(Net().train(), backend="aot_eager", wait=False)
    for each in (*model.parameters(), *plain.parameters()):
        each.grad = torch.ones_like(each)
    read, seen = meta_utils.safe_grad, list[Any]()

    def noted(tensor: Any) -> Any:
        seen.append(tensor)
        return read(tensor)

    monkeypatch.setattr(meta_utils, "safe_grad", noted)
    model(sample())  # runs eager, and begins to compile
    wait_until_idle(model)
    assert not seen
    torch.compile(plain, backend="aot_eager")(sample())
    assert seen, "plain torch reads them, also in this process"


class Switched(nn.Module):
    """Takes another path, with other graph breaks, if its attribute changes."""

    def __init__(self) -> None:
        super().__init__()
        self.bends = True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(x) if self.bends else torch.relu(torch.cos(x))
        torch._dynamo.graph_break()
        return torch.tanh(x)


@pytest.mark.parametrize(("wait", "times"), [(False, 0), (False, 2), (True, 1000)])
def test_a_model_that_changes_while_it_is_traced_is_traced_again(
    wait: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that always changes falls back instead of making callers wait."""
    model, x = compiled(Switched(), wait=wait, backend="eager"), sample()
    log = importlib.import_module("torch._dynamo.symbolic_convert").SpeculationLog
    restart, left = log.restart, [times]

    def change(self: Any) -> None:
        if self.entries and left[0] > 0:  # none before the first pass
            left[0] -= 1
            model.bends = not model.bends
        restart(self)

    monkeypatch.setattr(log, "restart", change)
    status = torchproof.status(model)
    for _ in range(40):
        torch.testing.assert_close(model(x), Switched.forward(model, x))
        wait_until_idle(model)
        status = torchproof.status(model)
        if status.compiled_calls or status.fallbacks:
            break
    kinds = [item.kind for item in status.fallbacks]
    assert kinds == (["compile error"] if times > 2 else []), status
    assert bool(status.compiled_calls) is (times <= 2), status


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_background_outlives_an_error_and_ends_without_work() -> None:
    done = threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt

    for work in (fail, done.set):
        background._compiler.submit(work)
    assert done.wait(AGES_S)
    name = "torchproof-background"
    wait_for(lambda: name not in [each.name for each in threading.enumerate()])
