"""State that cannot be compared: the step is not recorded, and the reason is given."""

from __future__ import annotations

import datetime
import io
import itertools
import logging
import os
import random
import sys
import threading
import time
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import torchproof

X = torch.ones(3)
Step = Callable[[Tensor], Tensor]


def from_a_generator() -> Step:
    numbers = (float(n) for n in range(100))
    return lambda x: x * next(numbers)


def from_an_iterator() -> Step:
    numbers = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0] * 9)
    return lambda x: x * next(numbers)


def from_itertools() -> Step:
    numbers = itertools.count()
    return lambda x: x * next(numbers)


def from_the_clock() -> Step:
    return lambda x: x * time.time()


def from_a_date() -> Step:
    return lambda x: x * datetime.datetime.now().microsecond


def from_own_random_numbers() -> Step:
    chance = random.Random(0)
    return lambda x: x * chance.random()


def from_a_numpy_generator() -> Step:
    chance = numpy.random.default_rng(0)
    return lambda x: x * chance.random()


def from_a_uuid() -> Step:
    return lambda x: x * (uuid.uuid4().int % 1000)


def from_random_bytes() -> Step:
    return lambda x: x * os.urandom(1)[0]


def from_a_file() -> Step:
    path = Path(__file__)
    return lambda x: x * len(path.read_text())


def from_a_stream() -> Step:
    stream = io.StringIO("1\n" * 100)
    return lambda x: x * float(stream.readline())


def from_a_counter_of_subclasses() -> Step:
    class Base:
        pass

    return lambda x: x * len(Base.__subclasses__())


def from_a_weak_reference_to_a_module() -> Step:
    m = nn.Linear(3, 3)
    reference = weakref.ref(m)
    holder = [m]
    step: Step = lambda x: reference()(x)  # type: ignore[misc]  # noqa: E731
    step.holder = holder  # type: ignore[attr-defined]
    return step


@pytest.mark.parametrize(
    "make", [each for name, each in sorted(globals().items()) if name[:5] == "from_"]
)
def test_it_is_not_recorded(make: Callable[[], Step]) -> None:
    graphed = torchproof.graph(make())
    for _ in range(2):
        graphed(X)
    status = graphed.status()
    assert (status.replays, status.plain_calls) == (0, 2)
    assert {stop.kind for stop in status.stops} == {"python"}
    assert all(stop.reason for stop in status.stops)


# -- what looks like it and is none ----------------------------------------------------


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
        self.settings = types.SimpleNamespace(scale=2.0, verbose=False)

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


def test_what_a_step_does_not_read_may_change_with_every_call() -> None:
    trainer = Trainer()
    graphed = torchproof.graph(trainer.step)
    for number in range(8):
        torch.testing.assert_close(graphed(X), trainer.step(X).detach())
        trainer.count += 1
        trainer.history.append(float(number))
        next(trainer.batches)
        trainer.extra = number  # type: ignore[attr-defined]
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (1, 8, ())


def test_what_is_read_and_changes_with_every_call_is_bounded() -> None:
    class Config:
        scale = 0.0

    graphed = torchproof.graph(lambda x: x * Config.scale)
    for number in range(12):
        Config.scale = float(number)
        assert graphed(X).tolist() == [float(number)] * 3
    status = graphed.status()
    assert status.recordings < 8 and status.buckets == ()
    assert status.stops[0].kind == "python"


def test_a_change_back_finds_the_old_recording() -> None:
    class Config:
        scale = 1.0

    graphed = torchproof.graph(lambda x: x * Config.scale)
    for _ in range(4):
        for scale in (1.0, 2.0):
            Config.scale = scale
            assert graphed(X).tolist() == [scale] * 3
    assert (graphed.status().recordings, graphed.status().stops) == (2, ())


def test_a_comparison_runs_no_code_of_the_user() -> None:
    class Touchy:
        def __init__(self) -> None:
            self.scale = 2.0

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

        def __len__(self) -> int:
            raise AssertionError("measured")

        @property
        def loud(self) -> float:
            raise AssertionError("asked")

    touchy = Touchy()
    holder = [touchy]
    graphed = torchproof.graph(lambda x: x * holder[0].scale)
    graphed(X)
    holder[0] = Touchy()
    holder[0].scale = 3.0
    for _ in range(2):
        assert graphed(X).tolist() == [3.0] * 3
    assert (graphed.status().recordings, graphed.status().replays) == (2, 3)


def test_a_profiler_of_the_user_is_left_alone() -> None:
    import sys

    graphed = torchproof.graph(lambda x: x * 2)
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    sys.setprofile(profile)
    try:
        assert graphed(X).tolist() == [2.0] * 3
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert graphed(X).tolist() == [2.0] * 3
    assert graphed.status().replays == 1


def test_a_tensor_hook_is_seen() -> None:
    model, twin = nn.Linear(3, 1), nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    graphed = torchproof.graph(model, train=True)

    def check() -> None:
        for each in (model, twin):
            each.zero_grad()
        graphed(X)
        twin(X).mean().backward()
        torch.testing.assert_close(model.weight.grad, twin.weight.grad)

    check()
    handles = [e.weight.register_hook(lambda grad: grad * 3) for e in (model, twin)]
    check()
    check()
    for handle in handles:
        handle.remove()
    check()


def test_settings_of_the_interpreter_are_not_replayed() -> None:
    graphed = torchproof.graph(lambda x: x * sys.getrecursionlimit())
    graphed(torch.ones(3))
    assert graphed.status().replays == 0
    assert "sys.getrecursionlimit" in str(graphed.status())


def test_a_few_reasons_are_enough() -> None:
    rows = [iter([1.0]) for _ in range(50)]
    graphed = torchproof.graph(lambda x: x * len(rows))
    graphed(torch.ones(3))
    assert graphed.status().replays == 0
    assert len(graphed.status().stops) < 10
