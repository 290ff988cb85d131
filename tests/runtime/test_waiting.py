"""A caller that waits for the compiler: what reaches it, and what it keeps."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from typing import Any

import pytest
import torch

import torchproof


class Called(Exception):
    """What a signal handler of the user's raises."""


def test_what_a_signal_handler_raises_reaches_the_caller() -> None:
    leave, me = threading.Event(), threading.main_thread().ident
    assert me is not None

    def waits(graph: Any, inputs: Any) -> Any:
        if not leave.is_set():
            signal.pthread_kill(me, signal.SIGUSR2)
            leave.wait()
        return graph.forward

    def handler(*_: object) -> None:
        leave.set()
        raise Called

    compiled = torchproof.compile(lambda x: x * 2, backend=waits)
    previous = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(Called):
            compiled(torch.ones(2))
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    status = torchproof.status(compiled)
    assert (len(status.compilations), status.fallbacks) == (1, ())


def test_inputs_are_not_kept_after_a_missed_deadline() -> None:
    def loops(graph: Any, inputs: Any) -> Any:
        while True:
            pass

    compiled = torchproof.compile(lambda x: x * 2, backend=loops, deadline=0.5)
    x = torch.ones(2)
    kept = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        compiled(x)
        del x
        assert kept() is None
    finally:
        gc.enable()
    assert torchproof.status(compiled).fallbacks[0].kind == "deadline"
