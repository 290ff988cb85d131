"""A fork of a process that compiles: what its threads held stays with the parent."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from twins import Block
from waiting import in_fork

import torchproof
from torchproof.process import forks

DEADLINE_S = 200.0  # that a call in the fork would wait for
PATIENCE_S = 60


@pytest.fixture
def held(fresh_compiler: None) -> Iterator[Callable[..., None]]:
    """Starts a thread that stays in a `with` block, or in a call of `pause`."""
    inside, leave = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def pause() -> None:
        inside.set()
        leave.wait()

    def hold(act: Callable[[Callable[[], None]], Any]) -> None:
        threads.append(threading.Thread(target=act, args=(pause,)))
        threads[-1].start()
        assert inside.wait(PATIENCE_S)

    yield hold
    leave.set()
    for thread in threads:
        thread.join()


class Doubled(Block):
    def forward(self, x: Tensor) -> Tensor:
        # What is traced and what runs eager differ. (`is_compiling()` would be true for
        # eager calls, too, while another thread traces.)
        return x + torch.tanh(self.mix(x)) * (
            1.0 + torch.compiler.is_dynamo_compiling()
        )


def compiles_anew(model: nn.Module, eager: Tensor, compiled: Tensor) -> None:
    """A call in the fork answers at once and right; the model is compiled soon."""
    assert not torch.compiler.is_compiling()  # as in the thread that did not fork
    x, until = torch.ones(2, 4), time.monotonic() + PATIENCE_S / 2
    answer = model(x)
    # With wait=False a compilation is counted before its code answers calls.
    while not torch.allclose(answer, compiled) and time.monotonic() < until:
        assert torch.allclose(answer, eager)
        time.sleep(0.02)
        answer = model(x)
    assert torch.allclose(answer, compiled)
    assert torchproof.status(model).fallbacks == ()


@pytest.mark.parametrize("settings", [{}, {"wait": False}, {"strategy": "regional"}])
def test_a_model_that_is_compiled_while_another_thread_forks(
    held: Any, settings: dict[str, Any]
) -> None:
    parent, x = os.getpid(), torch.ones(2, 4)
    model: nn.Module = nn.Sequential(Doubled(), Doubled(), Doubled())
    pause: Callable[[], None] = lambda: None  # noqa: E731

    def backend(gm: Any, inputs: Any) -> Any:
        if os.getpid() == parent:
            pause()
        return gm.forward

    with torch.no_grad():
        eager = model(x)
        doubled = x
        for block in model.children():
            doubled = doubled + block.mix(doubled).tanh() * 2.0
        model = torchproof.compile(
            model, backend=backend, deadline=DEADLINE_S, **settings
        )

        def act(hold: Callable[[], None]) -> None:
            nonlocal pause
            pause = hold
            with torch.no_grad():
                model(x)
                model(x)  # of regions, the first call shows where they are

        held(act)
        assert in_fork(lambda: compiles_anew(model, eager, doubled), PATIENCE_S) == 0


@pytest.fixture
def cuda_of_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In forks, CUDA as it is there if the parent used it: available, and unusable."""
    parent, built = os.getpid(), torch.cuda._is_compiled()
    original = torch.cuda.get_rng_state

    def forked() -> bool:
        return os.getpid() != parent

    def get_rng_state(*args: Any) -> Tensor:
        if forked():
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return original(*args)

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: forked() or built)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", forked)
    monkeypatch.setattr(torch.cuda, "get_rng_state", get_rng_state)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", forked, raising=False)


def where_it_is(x: Tensor) -> Tensor:
    return x * (3.0 if torch.cuda.is_available() else 2.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for CUDA")
def test_a_fork_of_a_process_that_used_cuda_can_compile(
    cuda_of_the_parent: None, fresh_compiler: None
) -> None:
    x = torch.ones(2)
    torchproof.compile(torch.sin, backend="eager")(x)

    def check() -> None:
        compiled = torchproof.compile(where_it_is, backend="eager", deadline=DEADLINE_S)
        eager, answer = where_it_is(x), compiled(x)
        assert torch.equal(eager, x * 3.0) and torch.equal(answer, eager)
        status = torchproof.status(compiled)
        assert (len(status.compilations), status.fallbacks) == (1, ())

    assert in_fork(check, PATIENCE_S) == 0


class Item:
    pass


def test_a_weak_set_is_read_while_another_thread_adds_to_it() -> None:
    items: weakref.WeakSet[Item] = weakref.WeakSet()
    kept, ended = [Item() for _ in range(2000)], threading.Event()
    items.update(kept)

    def add() -> None:
        while not ended.is_set():
            kept.append(Item())
            items.add(kept[-1])

    before = sys.getswitchinterval()
    thread = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(20):
            assert len(forks.alive(items)) >= 2000
        with pytest.raises(RuntimeError, match="changed size"):  # what it is for
            while True:
                list(items)
    finally:
        sys.setswitchinterval(before)
        ended.set()
        thread.join()
